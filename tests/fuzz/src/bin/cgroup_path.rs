//! Cgroup paths: any bytes at all as a path, and as what somebody in a container, a job, a
//! service or a user's slice makes below their own directory. Nobody becomes somebody else.

#![no_main]

use gpuwho_owners::attribute::cgroup::{parse_path, parse_proc_cgroup};
use libfuzzer_sys::fuzz_target;

const UID: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    parse_proc_cgroup(&text);
    parse_path(&text);
    // A directory's name holds no slash at its ends and no newline.
    let below = text.replace('\n', "");

    let pod = parse_path(&format!("/kubepods/burstable/pod{UID}/{ID}/{below}"));
    assert_eq!(pod.pod.as_ref().map(|pod| pod.uid.as_str()), Some(UID));
    assert_eq!(pod.container.as_ref().map(|id| id.as_str()), Some(ID));
    assert!(pod.slurm.is_none() && !pod.nested);

    let job = parse_path(&format!("/slurm/uid_7/job_42/step_0/task_1/{below}"));
    assert_eq!(job.slurm.as_ref().map(|task| task.job.as_str()), Some("42"));
    assert!(job.pod.is_none());

    let user = parse_path(&format!("/user.slice/user-1000.slice/user@1000.service/{below}"));
    assert!(user.user_slice && user.slurm.is_none());
    assert!(user.pod.is_none() || user.nested);

    let service = parse_path(&format!("/system.slice/theirs.service/{below}"));
    assert_eq!(service.unit.as_deref(), Some("theirs.service"));
    assert!(service.slurm.is_none() && service.allocation.is_none() && service.machine.is_none());
    assert!(service.pod.is_none() || service.nested);
});

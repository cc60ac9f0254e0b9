use super::*;
use crate::attribute::fake::FakeHost;
use crate::process::Folder;
use crate::process::stat::MAX_STAT;
use gpuwho_model::ids::ProcKey;
use std::path::PathBuf;

const KEY: ProcKey = ProcKey { pid: 7, start_ticks: 100 };

#[test]
fn a_hostile_command_name_does_not_shift_the_start_time() {
    let host = FakeHost::new();
    for comm in ["a) R 1 (b", "x\ny", ") 1 2 3 4", "", "a b\tc"] {
        host.start(KEY, comm, "0::/\n");
        let living = Living::find(&host.paths, KEY.pid).unwrap();
        assert_eq!((living.key, &*living.comm), (KEY, comm));
        assert!(Living::is_alive(&host.paths, KEY), "{comm}");
    }
}

#[test]
fn a_command_name_that_is_not_utf8_is_still_read() {
    let host = FakeHost::new();
    host.start(KEY, "python", "0::/\n");
    let dir = host.paths.proc.join("7");
    let stat = std::fs::read(dir.join("stat")).unwrap();
    let broken: Vec<u8> =
        stat.iter().map(|byte| if *byte == b'h' { 0xff } else { *byte }).collect();
    std::fs::write(dir.join("stat"), broken).unwrap();
    std::fs::write(dir.join("status"), b"Name:\t\xff\xfe\nTgid:\t7\nUid:\t5\t6\t7\t8\n").unwrap();

    let living = Living::find(&host.paths, 7).unwrap();
    assert_eq!((&*living.comm, living.uid()), ("pyt\u{fffd}on", Some(5)));
    assert!(Living::is_alive(&host.paths, KEY));
}

#[test]
fn an_exiting_process_is_not_alive() {
    let host = FakeHost::new();
    host.start(KEY, "python", "0::/\n");
    host.rewrite_stat(KEY, 'Z', 0);
    assert!(Living::find(&host.paths, 7).is_none());
    host.rewrite_stat(KEY, 'R', 0x4);
    assert!(Living::find(&host.paths, 7).is_none());
    host.rewrite_stat(KEY, 'R', 0);
    assert!(Living::find(&host.paths, 7).is_some());
}

#[test]
fn a_process_with_an_exited_first_thread_is_where_its_live_thread_is() {
    let host = FakeHost::new();
    let job = "/slurm/uid_7/job_5/step_0";
    host.start(KEY, "python", "4:memory:/\n");
    host.thread(KEY, 8, 'Z', "4:memory:/\n");
    host.thread(KEY, 9, 'S', &format!("4:memory:{job}\n"));
    for (state, flags) in [('Z', 0), ('R', 0x4)] {
        host.rewrite_stat(KEY, state, flags);
        let living = Living::find(&host.paths, 7).unwrap();
        let Some(Placement::Known { path, .. }) = living.placement() else { panic!("{state}") };
        assert_eq!((living.key, &*path, living.uid()), (KEY, job, Some(1000)));
    }
    // So is its executable, which the first thread no longer has.
    std::os::unix::fs::symlink("/usr/bin/train", host.paths.proc.join("7/task/9/exe")).unwrap();
    let program = Living::find(&host.paths, 7).unwrap().program();
    assert_eq!(program, Some(PathBuf::from("/usr/bin/train")));
    host.thread(KEY, 9, 'X', "4:memory:/\n");
    assert!(Living::find(&host.paths, 7).is_none());
}

#[test]
fn another_process_with_the_same_pid_is_not_the_same() {
    let host = FakeHost::new();
    host.start(KEY, "python", "0::/\n");
    assert!(Living::same(&host.paths, KEY).is_some());
    assert!(Living::same(&host.paths, ProcKey { start_ticks: 99, ..KEY }).is_none());
    assert!(!Living::is_alive(&host.paths, ProcKey { start_ticks: 99, ..KEY }));
}

#[test]
fn a_folder_does_not_answer_for_a_later_process_of_the_pid() {
    let host = FakeHost::new();
    host.start(KEY, "python", "0::/\n");
    let folder = Folder::open(&host.paths, 7).unwrap();
    host.end(KEY);
    host.start(ProcKey { start_ticks: 900, ..KEY }, "later", "0::/later\n");
    host.hold(KEY, "", "/dev/zero");
    assert!(folder.stat("").is_none() && folder.stat_and_cgroup().is_none());
    assert_eq!((folder.text("cgroup"), folder.another()), (None, None));
    assert!(folder.file("fd").is_none());
}

#[test]
fn a_thread_that_does_not_lead_its_group_has_no_user() {
    let host = FakeHost::new();
    host.start(KEY, "python", "0::/\n");
    let status = host.paths.proc.join("7/status");
    std::fs::write(status, "Name:\tx\nTgid:\t6\nUid:\t5\t5\t5\t5\n").unwrap();
    assert_eq!(Living::find(&host.paths, 7).unwrap().uid(), None);
}

#[test]
fn malformed_stat_text_is_no_process() {
    let host = FakeHost::new();
    host.start(KEY, "python", "0::/\n");
    for text in ["", "7", "7 (x) R", "7 (x) R 1 2 x"] {
        std::fs::write(host.paths.proc.join("7/stat"), text).unwrap();
        assert!(Living::find(&host.paths, 7).is_none(), "{text:?}");
    }
}

#[test]
fn a_stat_file_of_another_form_is_no_process() {
    let host = FakeHost::new();
    host.start(KEY, "python", "0::/\n");
    let path = host.paths.proc.join("7/stat");
    let whole = std::fs::read_to_string(&path).unwrap();
    let longer = whole.replace("python", &"a".repeat(MAX_STAT));
    let nameless = whole.replacen(" (", "(", 1);
    let more = [format!("{whole}\u{e9}"), whole.replace(") ", ") \n"), longer, nameless];
    let cut =
        ["", "7 (python)", "7 (python) ", "(python) S 1", "7 \u{e9}(a) S 1", "7 )python( S 1"];
    for broken in cut.into_iter().chain(more.iter().map(String::as_str)) {
        std::fs::write(&path, broken).unwrap();
        assert!(Living::find(&host.paths, 7).is_none(), "{broken}");
    }
}

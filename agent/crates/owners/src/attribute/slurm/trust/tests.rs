use super::*;
use std::path::PathBuf;

fn recorded(name: &str) -> SlurmEnv {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/slurm");
    let text = std::fs::read_to_string(dir.join(name)).unwrap();
    SlurmEnv::read(text.replace('\n', "\0").as_bytes(), 0).unwrap()
}

fn numbered(job: u32) -> (SlurmJobId, Facts) {
    let mut facts = Facts::default();
    facts.put(Label::JobId, &job.to_string(), Source::Cgroup);
    (SlurmJobId::new(&job.to_string()), facts)
}

/// Every trusted label, as text.
fn trusted(claims: &SlurmEnv, name: &SlurmJobId, facts: &Facts, uid: u32) -> Option<Vec<String>> {
    let labels = labels(claims, JobIdentity { name, facts }, uid)?;
    let text = |label: Label| labels.value(label).map(|value| format!("{label:?}={value}"));
    Some(LABELS.iter().filter_map(|row| text(row.label)).collect())
}

fn of_job(claims: &SlurmEnv, job: u32, uid: u32) -> Option<Vec<String>> {
    let (name, facts) = numbered(job);
    trusted(claims, &name, &facts, uid)
}

#[test]
fn a_batch_scripts_environment_labels_its_array_task() {
    assert_eq!(
        of_job(&recorded("environ-array-batch-22.05.8.txt"), 19, 20002).unwrap(),
        [
            "JobId=19",
            "ArrayJob=19",
            "ArrayTask=4",
            "Cluster=lab",
            "User=bob",
            "Uid=20002",
            "Account=physics",
            "Partition=debug",
            "Qos=normal",
            "Name=arr",
            "Nodes=gpu02",
            "NodeCount=1",
            "Gpus=1",
        ]
    );
}

#[test]
fn a_steps_environment_does_not_give_its_tasks_as_the_jobs() {
    let claims = recorded("environ-task-25.11.8.txt");
    assert_eq!(
        of_job(&claims, 6, 20001).unwrap(),
        [
            "JobId=6",
            "Cluster=lab25",
            "User=alice",
            "Uid=20001",
            "Account=ml",
            "Partition=gpu",
            "Name=train",
            "Nodes=gpu01",
            "NodeCount=1",
            "Gpus=0,1",
        ]
    );
    let expected = TaskClaim { rank: Some(1), local_rank: Some(1), gpus: Some("0".into()) };
    assert_eq!(rank(&claims, Some("0"), Some("1")), Some(expected));
    // Another task's claims, or another step's.
    assert_eq!(rank(&claims, Some("0"), Some("0")), None);
    assert_eq!(rank(&claims, Some("1"), Some("1")), None);
    let batch = recorded("environ-batch-25.11.8.txt");
    assert_eq!(rank(&batch, Some("batch"), Some("0")).unwrap().rank, Some(0));
    assert!(of_job(&batch, 6, 20001).unwrap().contains(&"Tasks=2".to_owned()));
}

#[test]
fn a_heterogeneous_component_has_its_own_facts_from_the_leaders_environment() {
    let of_component = |id: &str, offset: &str, partition: &str, nodes: &str| {
        [
            format!("JobId={id}"),
            "HetJob=20".into(),
            format!("HetOffset={offset}"),
            "HetSize=2".into(),
            "Cluster=lab".into(),
            "User=bob".into(),
            "Uid=20002".into(),
            "Account=physics".into(),
            format!("Partition={partition}"),
            "Qos=normal".into(),
            "Name=het".into(),
            format!("Nodes={nodes}"),
        ]
        .to_vec()
    };
    let component = recorded("environ-het-component-22.05.8.txt");
    assert_eq!(of_job(&component, 21, 20002), Some(of_component("21", "1", "debug", "gpu02")));
    // The environment contains `SLURM_JOB_PARTITION=debug`; this component runs in `gpu`.
    let leader = recorded("environ-het-leader-22.05.8.txt");
    assert_eq!(of_job(&leader, 20, 20002), Some(of_component("20", "0", "gpu", "gpu01")));
}

#[test]
fn a_leaders_environment_without_components_gives_a_component_the_shared_facts() {
    let (name, mut facts) = numbered(21);
    facts.put(Label::HetJob, "20", Source::Prolog);
    let environ = "SLURM_JOB_ID=20\0SLURM_JOB_UID=20001\0SLURM_JOB_USER=alice\0\
                   SLURM_JOB_PARTITION=gpu\0SLURM_JOB_ACCOUNT=ml\0SLURM_JOB_NAME=het\0\
                   SLURM_CLUSTER_NAME=lab\0";
    let claims = SlurmEnv::read(environ.as_bytes(), 0).unwrap();
    let all = trusted(&claims, &name, &facts, 20001).unwrap();
    assert_eq!(all, ["Cluster=lab", "User=alice", "Uid=20001", "Name=het"]);
}

#[test]
fn an_environment_that_names_another_job_is_rejected() {
    let claims = recorded("environ-task-22.05.8.txt");
    assert!(of_job(&claims, 7, 20001).is_some());
    assert_eq!(of_job(&claims, 8, 20001), None);
    let none = SlurmEnv::read(&b"SLURM_JOB_ACCOUNT=evil\0"[..], 0).unwrap();
    assert_eq!(of_job(&none, 8, 20001), None);
    // A claim to be a component of another job's.
    let forged = b"SLURM_JOB_ID=99\0SLURM_HET_SIZE=2\0SLURM_JOB_ID_HET_GROUP_0=98\0\
                   SLURM_JOB_ID_HET_GROUP_1=8\0SLURM_JOB_ACCOUNT=evil\0";
    assert_eq!(of_job(&SlurmEnv::read(&forged[..], 0).unwrap(), 8, 20001), None);
}

#[test]
fn a_user_that_contradicts_the_kernel_is_removed() {
    let labels = of_job(&recorded("environ-task-22.05.8.txt"), 7, 20002).unwrap();
    assert!(!labels.iter().any(|label| label.contains("alice") || label.contains("20001")));
    assert!(labels.contains(&"Account=ml".to_owned()));
}

#[test]
fn only_the_sluid_connects_an_environment_to_a_cgroup_with_an_unknown_number() {
    let name = SlurmJobId::new("sDNDM7XZ1H3600");
    let of = |text: &str, facts: &Facts| {
        trusted(&SlurmEnv::read(text.as_bytes(), 0).unwrap(), &name, facts, 7)
    };
    let unknown = Facts::default();
    let own = "SLURM_JOB_ID=5\0SLURM_JOB_SLUID=sDNDM7XZ1H3600\0SLURM_JOB_NAME=a\0";
    let expected = ["JobId=5", "Sluid=sDNDM7XZ1H3600", "Name=a"].map(str::to_owned).to_vec();
    assert_eq!(of(own, &unknown), Some(expected));
    assert_eq!(of("SLURM_JOB_ID=5\0SLURM_JOB_NAME=a\0", &unknown), None);
    let foreign = "SLURM_JOB_ID=5\0SLURM_JOB_SLUID=sDNDM7XZ1HGS00\0";
    assert_eq!(of(foreign, &unknown), None);
    // The number from the title does not help another SLUID, and is enough without one.
    let (_, five) = numbered(5);
    assert_eq!(of(foreign, &five), None);
    assert!(of("SLURM_JOB_ID=5\0SLURM_JOB_NAME=a\0", &five).is_some());
}

use super::*;

fn pod(name: &str, labels: &[(&str, &str)]) -> PodMeta {
    let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    PodMeta { namespace: "ml".into(), name: name.into(), labels, ..PodMeta::default() }
}

fn reported(meta: &PodMeta) -> Vec<(&'static str, String)> {
    let (workload, _) = describe(meta, &WantedLabels::default());
    workload.iter().map(|(key, value)| (key.name, value.to_string())).collect()
}

#[track_caller]
fn expect(meta: &PodMeta, wanted: &[(&'static str, &str)]) {
    let wanted: Vec<_> = wanted.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    assert_eq!(reported(meta), wanted, "of {meta:?}");
}

const KIND: &str = "gpuwho.workload.kind";
const NAME: &str = "gpuwho.workload.name";
const QUEUE: &str = "gpuwho.workload.queue";

#[test]
fn a_pod_with_its_template_hash_in_its_name_belongs_to_the_deployment() {
    let meta = pod("vllm-llama-7d4b9c6f5d-x2x7k", &[("pod-template-hash", "7d4b9c6f5d")]);
    expect(
        &meta,
        &[
            ("k8s.replicaset.name", "vllm-llama-7d4b9c6f5d"),
            ("k8s.deployment.name", "vllm-llama"),
            (KIND, "Deployment"),
            (NAME, "vllm-llama"),
        ],
    );
}

#[test]
fn a_name_that_only_looks_like_a_replica_sets_proves_nothing() {
    expect(&pod("vllm-llama-7d4b9c6f5d-x2x7k", &[]), &[]);
    expect(&pod("vllm-llama-7d4b9c6f5d-x2x7k", &[("pod-template-hash", "5c9f8b7d6")]), &[]);
    // A pod named by a user, with labels copied from a Deployment's (kubectl debug --copy-to).
    expect(&pod("vllm-debug", &[("pod-template-hash", "7d4b9c6f5d")]), &[]);
    expect(&pod("vllm-7d4b9c6f5d-aeiou", &[("pod-template-hash", "7d4b9c6f5d")]), &[]);
    expect(&pod("7d4b9c6f5d-x2x7k", &[("pod-template-hash", "7d4b9c6f5d")]), &[]);
    expect(&pod("vllm-x2x7k", &[("pod-template-hash", "")]), &[]);
}

#[test]
fn a_rollouts_pod_belongs_to_the_rollout_and_to_no_deployment() {
    let meta = pod("pay-85b94df67f-2cd4l", &[("rollouts-pod-template-hash", "85b94df67f")]);
    expect(&meta, &[("k8s.replicaset.name", "pay-85b94df67f"), (KIND, "Rollout"), (NAME, "pay")]);
}

#[test]
fn a_stateful_sets_pod_is_known_by_its_name_index_and_revision() {
    let labels = [
        ("apps.kubernetes.io/pod-index", "3"),
        ("controller-revision-hash", "llm-serve-5bdf4964d4"),
        ("statefulset.kubernetes.io/pod-name", "llm-serve-3"),
    ];
    let set = [("k8s.statefulset.name", "llm-serve"), (KIND, "StatefulSet"), (NAME, "llm-serve")];
    expect(&pod("llm-serve-3", &labels), &set);
    // Before Kubernetes 1.28 there was no index.
    expect(&pod("llm-serve-3", &labels[1..]), &set);
}

#[test]
fn labels_copied_from_a_stateful_sets_pod_do_not_make_one() {
    let labels = [
        ("apps.kubernetes.io/pod-index", "3"),
        ("controller-revision-hash", "llm-serve-5bdf4964d4"),
        ("statefulset.kubernetes.io/pod-name", "llm-serve-3"),
    ];
    expect(&pod("llm-serve-4", &labels), &[]);
    expect(&pod("other-3", &labels), &[]);
    expect(&pod("llm-serve-3", &[("statefulset.kubernetes.io/pod-name", "llm-serve-3")]), &[]);
}

#[test]
fn a_daemon_sets_pod_is_known_by_its_two_labels() {
    let labels = [("controller-revision-hash", "6d5c7f8b9"), ("pod-template-generation", "4")];
    let set = [("k8s.daemonset.name", "node-trainer"), (KIND, "DaemonSet"), (NAME, "node-trainer")];
    expect(&pod("node-trainer-9xk2w", &labels), &set);
    expect(&pod("node-trainer-9xk2w", &labels[..1]), &[]);
    expect(&pod("node-trainer", &labels), &[]);
    // Cut before its random suffix: the set's name is unknown.
    let long = format!("{}-x2x7k", "a".repeat(57));
    assert_eq!(long.len(), MAX_GENERATED_LEN);
    expect(&pod(&long, &labels), &[]);
}

#[test]
fn a_jobs_pod_names_the_job() {
    let job = [("k8s.job.name", "train"), (KIND, "Job"), (NAME, "train")];
    expect(&pod("train-8fk2n", &[("batch.kubernetes.io/job-name", "train")]), &job);
    expect(&pod("train-8fk2n", &[("job-name", "train"), ("controller-uid", "1b2c")]), &job);
    expect(&pod("train-8fk2n", &[("job-name", "train")]), &[]);
}

#[test]
fn a_job_made_at_its_scheduled_minute_belongs_to_the_cron_job() {
    let mut meta =
        pod("nightly-29384640-q4x2z", &[("batch.kubernetes.io/job-name", "nightly-29384640")]);
    meta.created_s = Some(29_384_640 * 60 + 2);
    expect(
        &meta,
        &[
            ("k8s.job.name", "nightly-29384640"),
            ("k8s.cronjob.name", "nightly"),
            (KIND, "CronJob"),
            (NAME, "nightly"),
        ],
    );
}

#[test]
fn a_number_at_the_end_of_a_jobs_name_is_no_schedule() {
    for (name, created_s) in [
        ("nightly-29384640", None),
        // A date, a build number, a future minute, a minute long past.
        ("report-20261121", Some(1_795_000_000)),
        ("build-4711", Some(1_795_000_000)),
        ("nightly-29384640", Some(29_384_639 * 60)),
        ("nightly-29384640", Some(29_384_640 * 60 + CRON_WINDOW_S)),
        ("nightly-029384640", Some(29_384_640 * 60 + 2)),
        ("-29384640", Some(29_384_640 * 60 + 2)),
    ] {
        let mut meta = pod("any", &[("batch.kubernetes.io/job-name", name)]);
        meta.created_s = created_s;
        expect(&meta, &[("k8s.job.name", name), (KIND, "Job"), (NAME, name)]);
    }
}

type Pairs = &'static [(&'static str, &'static str)];

/// The labels of a pod, and the expected workload.
const MARKED: &[(Pairs, Pairs)] = &[
    (
        &[
            ("training.kubeflow.org/job-name", "ddp"),
            ("training.kubeflow.org/operator-name", "pytorchjob-controller"),
            ("training.kubeflow.org/replica-type", "worker"),
        ],
        &[(KIND, "PyTorchJob"), (NAME, "ddp")],
    ),
    (
        &[
            ("training.kubeflow.org/job-name", "nccl"),
            ("training.kubeflow.org/operator-name", "mpi-operator"),
        ],
        &[(KIND, "MPIJob"), (NAME, "nccl")],
    ),
    // A future operator: the name is known, the kind is not.
    (
        &[
            ("training.kubeflow.org/job-name", "x"),
            ("training.kubeflow.org/operator-name", "newjob-controller"),
        ],
        &[(NAME, "x")],
    ),
    (
        &[("ray.io/cluster", "exp-raycluster-8xk2p"), ("ray.io/node-type", "worker")],
        &[(KIND, "RayCluster"), (NAME, "exp-raycluster-8xk2p")],
    ),
    (
        &[
            ("ray.io/cluster", "exp-raycluster-8xk2p"),
            ("ray.io/originated-from-cr-name", "exp"),
            ("ray.io/originated-from-crd", "RayJob"),
        ],
        &[(KIND, "RayJob"), (NAME, "exp")],
    ),
    (
        &[
            ("nvidia.com/dynamo-graph-deployment-name", "llama-disagg"),
            ("nvidia.com/dynamo-component-type", "decode"),
        ],
        &[(KIND, "DynamoGraphDeployment"), (NAME, "llama-disagg")],
    ),
    (
        &[
            ("serving.kserve.io/inferenceservice", "bert"),
            ("serving.knative.dev/service", "bert-predictor"),
        ],
        &[(KIND, "InferenceService"), (NAME, "bert")],
    ),
    (
        &[
            ("app.kubernetes.io/name", "llama3"),
            ("app.kubernetes.io/part-of", "nim-service"),
            ("app.kubernetes.io/managed-by", "k8s-nim-operator"),
        ],
        &[(KIND, "NIMService"), (NAME, "llama3")],
    ),
    (
        &[
            ("app.kubernetes.io/name", "llama3"),
            ("app.kubernetes.io/managed-by", "Helm"),
            ("app.kubernetes.io/part-of", "nim-service"),
        ],
        &[],
    ),
    (&[("leaderworkerset.sigs.k8s.io/name", "vllm")], &[(KIND, "LeaderWorkerSet"), (NAME, "vllm")]),
    (&[("volcano.sh/job-name", "mpi")], &[(KIND, "VolcanoJob"), (NAME, "mpi")]),
    (&[("workflows.argoproj.io/workflow", "etl-x")], &[(KIND, "Workflow"), (NAME, "etl-x")]),
    (
        &[("tekton.dev/pipelineRun", "ci-1"), ("tekton.dev/taskRun", "ci-1-test")],
        &[(KIND, "PipelineRun"), (NAME, "ci-1")],
    ),
    (&[("tekton.dev/taskRun", "one")], &[(KIND, "TaskRun"), (NAME, "one")]),
    (&[("sparkoperator.k8s.io/app-name", "pi")], &[(KIND, "SparkApplication"), (NAME, "pi")]),
    (&[("serving.knative.dev/service", "hello")], &[(KIND, "KnativeService"), (NAME, "hello")]),
    (
        &[("dag_id", "train_daily"), ("kubernetes_executor", "True")],
        &[(KIND, "AirflowDag"), (NAME, "train_daily")],
    ),
    (&[("dag_id", "train_daily")], &[]),
    (&[("kueue.x-k8s.io/pod-group-name", "duo")], &[(KIND, "PodGroup"), (NAME, "duo")]),
    (&[("ray.io/cluster", "")], &[]),
];

#[test]
fn every_frameworks_label_names_its_workload() {
    for (labels, wanted) in MARKED {
        expect(&pod("any-name", labels), wanted);
    }
}

#[test]
fn a_job_sets_pod_is_named_by_the_set_and_by_its_job() {
    let meta = pod(
        "pretrain-node-0-1-z9x4c",
        &[
            ("jobset.sigs.k8s.io/jobset-name", "pretrain"),
            ("batch.kubernetes.io/job-name", "pretrain-node-0"),
        ],
    );
    expect(&meta, &[("k8s.job.name", "pretrain-node-0"), (KIND, "JobSet"), (NAME, "pretrain")]);
}

#[test]
fn a_static_pod_has_no_workload() {
    let meta = pod("kube-apiserver-node-1", &[("tier", "control-plane")]);
    expect(&meta, &[]);
}

#[test]
fn the_queue_is_read_from_labels_and_annotations_in_order() {
    for (key, label) in frameworks::queue_keys() {
        let mut meta = pod("x", &[]);
        let place = if label { &mut meta.labels } else { &mut meta.annotations };
        place.insert(key.to_owned(), "team-a".into());
        expect(&meta, &[(QUEUE, "team-a")]);
        // The same key in the other place has no effect, unless the table has it as well.
        let mut other = pod("x", &[]);
        let place = if label { &mut other.annotations } else { &mut other.labels };
        place.insert(key.to_owned(), "team-a".into());
        let also = frameworks::queue_keys().any(|known| known == (key, !label));
        assert_eq!(!reported(&other).is_empty(), also, "{key}");
    }
    let both = [("kueue.x-k8s.io/queue-name", "lq"), ("kai.scheduler/queue", "kai")];
    expect(&pod("x", &both), &[(QUEUE, "lq")]);
}

#[test]
fn only_selected_labels_become_attributes() {
    let mut meta = pod("x", &[("team", "nlp"), ("app.kubernetes.io/part-of", "chat"), ("pw", "s")]);
    meta.annotations.insert("cost-centre".into(), "4711".into());
    meta.annotations.insert("team".into(), "not a label".into());
    meta.annotations.insert("notes".into(), "x".repeat(MAX_VALUE_LEN + 1));
    let strings = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    let wanted = WantedLabels::new(
        &strings(&["team", "app.kubernetes.io/*", "p"]),
        &strings(&["cost-centre", "notes"]),
    );
    let (_, details) = describe(&meta, &wanted.unwrap());
    let details: Vec<_> =
        details.iter().map(|(key, value)| (key.name, value.to_string())).collect();
    assert_eq!(
        details,
        [
            ("k8s.pod.label.app.kubernetes.io/part-of", "chat".to_owned()),
            ("k8s.pod.label.team", "nlp".to_owned()),
            ("k8s.pod.annotation.cost-centre", "4711".to_owned()),
        ]
    );
}

#[test]
fn a_pattern_with_a_star_in_its_middle_is_refused_by_name() {
    for bad in ["a*b", "", "**", "two words"] {
        let error = WantedLabels::new(&[bad.to_owned()], &[]).unwrap_err();
        assert_eq!(error, PatternError(bad.to_owned()));
    }
    assert!(WantedLabels::new(&["*".into()], &[]).is_ok());
}

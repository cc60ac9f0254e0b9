//! The labels that operators of training, inference and batch frameworks put on their pods, and the
//! queues that admitted the pods. One table, outermost owner first: the first that matches a pod
//! counts.

use super::PodMeta;

/// A framework's labels on its pods.
struct Mark {
    /// The label with the workload's name.
    name: &'static str,
    /// Its kind.
    kind: Kind,
    /// Labels that must be present as well, with these values.
    required: &'static [(&'static str, &'static str)],
}

/// The source of the workload's kind.
enum Kind {
    /// Always this one.
    Is(&'static str),
    /// From the value of another label: (value, kind).
    From(&'static str, &'static [(&'static str, &'static str)]),
}

/// Workload labels, each with the source of its meaning.
const MARKS: &[Mark] = &[
    // kubeflow/training-operator pkg/apis/kubeflow.org/v1/common_types.go JobNameLabel and
    // OperatorNameLabel; the values are the controllers' names
    // (pkg/controller.v1/*/…_controller.go) and, for the MPI-only operator, kubeflow/mpi-operator
    // pkg/apis/kubeflow/v2beta1.
    Mark {
        name: "training.kubeflow.org/job-name",
        kind: Kind::From(
            "training.kubeflow.org/operator-name",
            &[
                ("pytorchjob-controller", "PyTorchJob"),
                ("tfjob-controller", "TFJob"),
                ("mpijob-controller", "MPIJob"),
                ("mpi-operator", "MPIJob"),
                ("xgboostjob-controller", "XGBoostJob"),
                ("paddlejob-controller", "PaddleJob"),
                ("jaxjob-controller", "JAXJob"),
            ],
        ),
        required: &[],
    },
    // ray-project/kuberay ray-operator/controllers/ray/utils/constant.go
    // RayOriginatedFromCRNameLabelKey and RayOriginatedFromCRDLabelKey.
    Mark {
        name: "ray.io/originated-from-cr-name",
        kind: Kind::From(
            "ray.io/originated-from-crd",
            &[("RayJob", "RayJob"), ("RayService", "RayService"), ("RayCluster", "RayCluster")],
        ),
        required: &[],
    },
    // The same file, RayClusterLabelKey.
    is("ray.io/cluster", "RayCluster"),
    // ai-dynamo/dynamo deploy/operator/internal/consts/consts.go
    // KubeLabelDynamoGraphDeploymentName.
    is("nvidia.com/dynamo-graph-deployment-name", "DynamoGraphDeployment"),
    // kserve/kserve pkg/constants/constants.go InferenceServicePodLabelKey.
    is("serving.kserve.io/inferenceservice", "InferenceService"),
    // NVIDIA/k8s-nim-operator api/apps/v1alpha1/nimservice_types.go GetStandardLabels.
    Mark {
        name: "app.kubernetes.io/name",
        kind: Kind::Is("NIMService"),
        required: &[
            ("app.kubernetes.io/part-of", "nim-service"),
            ("app.kubernetes.io/managed-by", "k8s-nim-operator"),
        ],
    },
    // kubernetes-sigs/lws api/leaderworkerset/v1/leaderworkerset_types.go SetNameLabelKey.
    is("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    // kubernetes-sigs/jobset api/jobset/v1alpha2/jobset_types.go JobSetNameKey. A Kubeflow
    // TrainJob's pods are those of a JobSet of its name and have no label of their own.
    is("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    // volcano-sh/apis pkg/apis/batch/v1alpha1/labels.go JobNameKey; `VolcanoJob` because the kind
    // is `Job`, as in batch/v1.
    is("volcano.sh/job-name", "VolcanoJob"),
    // argoproj/argo-workflows workflow/common/common.go LabelKeyWorkflow.
    is("workflows.argoproj.io/workflow", "Workflow"),
    // Tekton's documents, "Labels and annotations": copied to pods from their TaskRun.
    is("tekton.dev/pipelineRun", "PipelineRun"),
    is("tekton.dev/taskRun", "TaskRun"),
    // kubeflow/spark-operator, label of driver and executors of a SparkApplication.
    is("sparkoperator.k8s.io/app-name", "SparkApplication"),
    // knative/serving pkg/apis/serving/register.go ServiceLabelKey; `KnativeService` because the
    // kind is `Service`, as in the core group.
    is("serving.knative.dev/service", "KnativeService"),
    // apache/airflow providers/cncf/kubernetes pod_generator.py build_labels_for_k8s_executor_pod:
    // the key is a common word, the required label is not.
    Mark {
        name: "dag_id",
        kind: Kind::Is("AirflowDag"),
        required: &[("kubernetes_executor", "True")],
    },
    // kubernetes-sigs/kueue pkg/controller/jobs/pod/constants GroupNameLabel: plain pods admitted
    // together.
    is("kueue.x-k8s.io/pod-group-name", "PodGroup"),
];

const fn is(name: &'static str, kind: &'static str) -> Mark {
    Mark { name, kind: Kind::Is(kind), required: &[] }
}

/// Labels (true) and annotations (false) with the queue's name; the first found counts.
const QUEUES: &[(bool, &str)] = &[
    // kubernetes-sigs/kueue pkg/controller/constants/constants.go QueueLabel, QueueAnnotation.
    (true, "kueue.x-k8s.io/queue-name"),
    // kubernetes-sigs/kueue apis/kueue/v1beta1 LocalQueueLabel: on every admitted pod, while the
    // label above is only on the job.
    (true, "kueue.x-k8s.io/local-queue-name"),
    (false, "kueue.x-k8s.io/queue-name"),
    // volcano-sh/apis pkg/apis/batch/v1alpha1/labels.go QueueNameKey: "in pod annotation / labels".
    (true, "volcano.sh/queue-name"),
    (false, "volcano.sh/queue-name"),
    // volcano-sh/apis pkg/apis/scheduling/v1beta1 QueueNameAnnotationKey.
    (false, "scheduling.volcano.sh/queue-name"),
    // NVIDIA/KAI-Scheduler pkg/common/constants DefaultQueueLabel.
    (true, "kai.scheduler/queue"),
];

/// Kind, if known, and name of the framework's workload that the pod is part of.
pub(super) fn workload(meta: &PodMeta) -> Option<(Option<String>, String)> {
    MARKS.iter().find_map(|mark| {
        let name = label(meta, mark.name)?;
        let agreed = mark.required.iter().all(|(key, value)| label(meta, key) == Some(value));
        agreed.then(|| (mark.kind.of(meta).map(str::to_owned), name.to_owned()))
    })
}

/// The queue that admitted the pod.
pub(super) fn queue(meta: &PodMeta) -> Option<&str> {
    QUEUES.iter().find_map(|(is_label, key)| {
        let values = if *is_label { &meta.labels } else { &meta.annotations };
        values.get(*key).map(String::as_str).filter(|queue| !queue.is_empty())
    })
}

fn label<'a>(meta: &'a PodMeta, key: &str) -> Option<&'a str> {
    meta.labels.get(key).map(String::as_str).filter(|value| !value.is_empty())
}

impl Kind {
    fn of(&self, meta: &PodMeta) -> Option<&'static str> {
        match self {
            Self::Is(kind) => Some(kind),
            Self::From(key, kinds) => {
                let reported = label(meta, key)?;
                kinds.iter().find(|(value, _)| *value == reported).map(|(_, kind)| *kind)
            }
        }
    }
}

/// The keys that name a queue, and whether each is a label.
#[cfg(test)]
pub(super) fn queue_keys() -> impl Iterator<Item = (&'static str, bool)> {
    QUEUES.iter().map(|(is_label, key)| (*key, *is_label))
}

//! Every attribute a point or the resource can carry, declared once, and the sets of them.

use crate::text::{printable, printable_arc};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// An attribute's name and meaning.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct AttrKey {
    /// OpenTelemetry name.
    pub name: &'static str,
    /// Its description in the documents.
    pub description: &'static str,
}

macro_rules! attributes {
    ($($(#[doc = $doc:literal])+ $name:ident = $key:literal;)+) => {
        $(
            $(#[doc = $doc])+
            pub static $name: AttrKey = AttrKey { name: $key, description: concat!($($doc, "\n"),+) };
        )+

        /// Every attribute, in the order of `METRICS.md`.
        pub static ALL: &[&AttrKey] = &[$(&$name),+];
    };
}

pub(crate) use attributes;

attributes! {
    /// `gpuwho`, unless `OTEL_SERVICE_NAME` is set (resource).
    SERVICE_NAME = "service.name";
    /// The agent's version (resource).
    SERVICE_VERSION = "service.version";
    /// `CLUSTER/HOST`, or the host's name where no cluster is configured (resource). Prometheus makes
    /// its label `instance` of it.
    SERVICE_INSTANCE_ID = "service.instance.id";
    /// The host's name, in a container too (resource).
    HOST_NAME = "host.name";
    /// The host's machine id (resource).
    HOST_ID = "host.id";
    /// The host's machine type, such as `p5.48xlarge` (resource).
    HOST_TYPE = "host.type";
    /// `aws`, `gcp`, `azure` or as configured (resource).
    CLOUD_PROVIDER = "cloud.provider";
    /// The cloud's region of this host (resource).
    CLOUD_REGION = "cloud.region";
    /// The cloud's availability zone of this host (resource).
    CLOUD_ZONE = "cloud.availability_zone";
    /// The cluster's name, as configured (resource).
    K8S_CLUSTER_NAME = "k8s.cluster.name";
    /// `linux` (resource).
    OS_TYPE = "os.type";
    /// The device's UUID exactly as the driver spells it.
    GPU_UUID = "gpu.uuid";
    /// The device's index in the driver's order, as text.
    GPU_INDEX = "gpu.index";
    /// The device's product name.
    GPU_MODEL = "gpu.model";
    /// `nvidia`, `amd`, `gaudi`, `tenstorrent`, `tpu`, `intel` or `neuron`.
    GPU_VENDOR = "gpu.vendor";
    /// PCI address, `domain:bus:device.function`.
    GPU_PCI_ADDRESS = "gpu.pci.address";
    /// The device's serial number.
    GPU_SERIAL = "gpu.serial_number";
    /// Kernel driver version.
    GPU_DRIVER_VERSION = "gpu.driver.version";
    /// Newest CUDA version the driver supports.
    GPU_CUDA_VERSION = "gpu.cuda.version";
    /// `enabled` or `disabled`; absent where the device has no MIG.
    GPU_MIG_MODE = "gpu.mig.mode";
    /// The MIG instance's UUID exactly as the driver spells it.
    GPU_MIG_UUID = "gpu.mig.uuid";
    /// The MIG instance's GPU instance id, unique on its device at one time.
    GPU_MIG_GPU_INSTANCE = "gpu.mig.gpu_instance.id";
    /// The MIG instance's compute instance id, unique in its GPU instance.
    GPU_MIG_COMPUTE_INSTANCE = "gpu.mig.compute_instance.id";
    /// The MIG instance's profile as the driver names it: `3g.20gb`, `1c.3g.20gb`, `1g.10gb+me`.
    GPU_MIG_PROFILE = "gpu.mig.profile";
    /// The busy engine.
    GPU_TASK = "gpu.task";
    /// Part of the device memory.
    GPU_MEMORY_STATE = "gpu.memory.state";
    /// Which fan.
    GPU_FAN = "gpu.fan.id";
    /// Where the temperature was measured.
    GPU_TEMPERATURE_SENSOR = "gpu.temperature.sensor";
    /// Which limit.
    GPU_LIMIT_TYPE = "gpu.limit.type";
    /// Which clock.
    GPU_CLOCK_TYPE = "gpu.clock.type";
    /// Why memory was taken out of use.
    GPU_MEMORY_RETIREMENT_CAUSE = "gpu.memory.retirement.cause";
    /// Number of spare rows that a bank of memory still has.
    GPU_MEMORY_SPARE_ROWS = "gpu.memory.spare_rows";
    /// Kind of PCIe error.
    GPU_PCIE_ERROR = "gpu.pcie.error";
    /// Whether ECC corrected an error.
    GPU_ECC_ERROR_TYPE = "gpu.ecc.error_type";
    /// Start of the ECC error counts.
    GPU_ECC_COUNT_TYPE = "gpu.ecc.count_type";
    /// Which memory of the device.
    GPU_ECC_LOCATION = "gpu.ecc.location";
    /// Which part of the device a static memory is in.
    GPU_ECC_SRAM_UNIT = "gpu.ecc.sram.unit";
    /// Which block of the chip reported a memory error.
    GPU_ECC_BLOCK = "gpu.ecc.block";
    /// What a number that no table knows stands for.
    GPU_CODE_KIND = "gpu.code.kind";
    /// What keeps the clocks down.
    GPU_THROTTLE_REASON = "gpu.throttle.reason";
    /// Which part of the multiprocessors.
    GPU_PIPE = "gpu.pipe";
    /// Which video or image engine.
    GPU_MEDIA_ENGINE = "gpu.media.engine";
    /// State of a device's performance counters.
    GPU_COUNTERS_STATE = "gpu.counters.state";
    /// How the process uses the device.
    GPU_PROCESS_TYPE = "gpu.process.type";
    /// Whether the device answers and why not.
    GPU_STATE = "gpu.state";
    /// Number of a link of the device.
    GPU_LINK_INDEX = "gpu.interconnect.link_index";
    /// Direction, as seen from the device. OpenTelemetry's own attribute, also on its `hw.gpu.io`.
    IO_DIRECTION = "network.io.direction";
    /// State of a link.
    GPU_LINK_STATE = "gpu.interconnect.state";
    /// Kind of error on a link.
    GPU_LINK_ERROR = "gpu.interconnect.error";
    /// How the recovery of a link ended.
    GPU_LINK_RECOVERY = "gpu.interconnect.recovery";
    /// Symbols corrected in a codeword.
    GPU_LINK_FEC_BIN = "gpu.interconnect.fec.corrected";
    /// State of the registration with the NVLink fabric.
    GPU_FABRIC_STATE = "gpu.fabric.state";
    /// Overall health of the NVLink fabric.
    GPU_FABRIC_HEALTH = "gpu.fabric.health";
    /// A problem of the NVLink fabric.
    GPU_FABRIC_CONDITION = "gpu.fabric.condition";
    /// The recovery action that the driver advises.
    GPU_RECOVERY_ACTION = "gpu.recovery.action";
    /// What is wrong with a device.
    GPU_HEALTH_CONDITION = "gpu.health.condition";
    /// How severe that is: `warning` or `critical`.
    GPU_HEALTH_SEVERITY = "gpu.health.severity";
    /// The worst of a device's conditions.
    GPU_HEALTH_STATUS = "gpu.health.status";
    /// A mode that is on or off.
    GPU_MODE = "gpu.mode";
    /// Who may use the device.
    GPU_COMPUTE_MODE = "gpu.compute_mode";
    /// The video use.
    GPU_VIDEO_USE = "gpu.video.use";
    /// Whether memory is protected in confidential computing.
    GPU_MEMORY_PROTECTION = "gpu.memory.protection";
    /// VBIOS version (`gpu.info`).
    GPU_VBIOS_VERSION = "gpu.vbios.version";
    /// Part number of the board (`gpu.info`).
    GPU_BOARD_PART = "gpu.board.part_number";
    /// Version of the firmware of the device's own processor (`gpu.info`).
    GPU_GSP_VERSION = "gpu.gsp.firmware.version";
    /// Version of the InfoROM's image (`gpu.info`).
    GPU_INFOROM_IMAGE = "gpu.inforom.image.version";
    /// Version of the InfoROM's OEM object (`gpu.info`).
    GPU_INFOROM_OEM = "gpu.inforom.oem.version";
    /// Version of the InfoROM's ECC object (`gpu.info`).
    GPU_INFOROM_ECC = "gpu.inforom.ecc.version";
    /// Version of the InfoROM's power object (`gpu.info`).
    GPU_INFOROM_POWER = "gpu.inforom.power.version";
    /// Checksum of the InfoROM's configuration, in hex: equal configurations have equal checksums
    /// (`gpu.info`).
    GPU_INFOROM_CHECKSUM = "gpu.inforom.configuration.checksum";
    /// Number of the module on its baseboard (`gpu.info`).
    GPU_MODULE_ID = "gpu.module.id";
    /// How device and host address each other's memory: `none`, `hmm` or `ats` (`gpu.info`).
    GPU_ADDRESSING_MODE = "gpu.addressing.mode";
    /// Serial number of the chassis (`gpu.info`).
    GPU_CHASSIS_SERIAL = "gpu.platform.chassis.serial_number";
    /// Slot in the chassis, counting switches (`gpu.info`).
    GPU_PLATFORM_SLOT = "gpu.platform.slot";
    /// Compute tray in the chassis (`gpu.info`).
    GPU_PLATFORM_TRAY = "gpu.platform.tray";
    /// Node in the slot (`gpu.info`).
    GPU_PLATFORM_HOST = "gpu.platform.host";
    /// What NVLink connects to: `direct` (other devices) or `switch` (`gpu.info`).
    GPU_PLATFORM_PEER = "gpu.platform.peer";
    /// NVLink generation, `4.0` (`gpu.info`).
    GPU_NVLINK_VERSION = "gpu.nvlink.version";
    /// UUID of the NVLink fabric's cluster (`gpu.info`).
    GPU_FABRIC_CLUSTER = "gpu.fabric.cluster.uuid";
    /// Clique in the NVLink fabric's cluster: devices of one clique reach each other (`gpu.info`).
    GPU_FABRIC_CLIQUE = "gpu.fabric.clique.id";
    /// Confidential computing: `off`, `on` or `devtools` (`gpu.info`).
    GPU_CONFIDENTIAL_MODE = "gpu.confidential_compute.mode";
    /// Environment of confidential computing: `unavailable`, `simulation` or `production`
    /// (`gpu.info`).
    GPU_CONFIDENTIAL_ENVIRONMENT = "gpu.confidential_compute.environment";
    /// How AMD's driver divides the compute units: `SPX`, `DPX`, `TPX`, `QPX` or `CPX` (`gpu.info`).
    GPU_PARTITION_COMPUTE = "gpu.partition.compute";
    /// How AMD's driver divides the memory: `NPS1` to `NPS8` (`gpu.info`).
    GPU_PARTITION_MEMORY = "gpu.partition.memory";
    /// What CPUs did (OpenTelemetry's own).
    CPU_MODE = "cpu.mode";
    /// Part of the host's memory (OpenTelemetry's own).
    SYSTEM_MEMORY_STATE = "system.memory.state";
    /// What tasks of a cgroup wait for.
    PRESSURE_RESOURCE = "cgroup.pressure.resource";
    /// How many of the tasks wait.
    PRESSURE_STALL = "cgroup.pressure.stall";
    /// The inference engine: `vllm`, `sglang`, `triton`, `tgi`, `nim`.
    ENGINE_NAME = "gpuwho.engine.name";
    /// The inference engine's version, where it says one.
    ENGINE_VERSION = "gpuwho.engine.version";
    /// What came of a request for an inference engine's page.
    ENGINE_PAGE_OUTCOME = "gpuwho.engine.page.outcome";
    /// How the families of an inference engine's page differ from what the agent knows.
    ENGINE_FAMILY_DRIFT = "gpuwho.engine.family.drift";
    /// The host of a configured endpoint; absent for an engine that was found on this host.
    SERVER_ADDRESS = "server.address";
    /// The port that the inference engine's metrics are read from.
    SERVER_PORT = "server.port";
    /// The model that requests ask for, as the inference engine serves it. OpenTelemetry's own.
    GEN_AI_MODEL = "gen_ai.request.model";
    /// The model's version, where the inference engine has one.
    INFERENCE_MODEL_VERSION = "inference.model.version";
    /// Place among the engine's data-parallel replicas; no index of a device.
    INFERENCE_DATA_RANK = "inference.data_parallel.rank";
    /// Rank in tensor parallelism; no index of a device.
    INFERENCE_TENSOR_RANK = "inference.tensor_parallel.rank";
    /// Rank in pipeline parallelism.
    INFERENCE_PIPELINE_RANK = "inference.pipeline_parallel.rank";
    /// Rank in expert parallelism.
    INFERENCE_EXPERT_RANK = "inference.expert_parallel.rank";
    /// The engine's part in disaggregated serving: `unified`, `prefill`, `decode`, `encode`.
    INFERENCE_ROLE = "inference.role";
    /// Why a request ended, in the engine's word; see `inference.requests.finished`.
    INFERENCE_FINISH_REASON = "inference.finish_reason";
    /// What kind of error, in the engine's word. OpenTelemetry's own.
    ERROR_TYPE = "error.type";
    /// Whether the answer is streamed.
    INFERENCE_STREAMING = "inference.streaming";
    /// Why, in the engine's word.
    INFERENCE_REASON = "inference.reason";
    /// Where from, in the engine's word.
    INFERENCE_SOURCE = "inference.source";
    /// Which state, in the engine's word.
    INFERENCE_STATE = "inference.state";
    /// Which mode, method or kind, in the engine's word.
    INFERENCE_MODE = "inference.mode";
    /// Which stage or phase, in the engine's word.
    INFERENCE_STAGE = "inference.stage";
    /// Which process of the engine, in its word.
    INFERENCE_COMPONENT = "inference.component";
    /// Position in a draft.
    INFERENCE_POSITION = "inference.position";
    /// Status of an HTTP answer, or its class (`2xx`).
    INFERENCE_HTTP_STATUS = "inference.http.status";
    /// PID in the host's PID namespace.
    PROCESS_PID = "process.pid";
    /// The process's executable name (`comm`).
    PROCESS_EXECUTABLE_NAME = "process.executable.name";
    /// The user name, or the user id where no name is known.
    PROCESS_OWNER = "process.owner";
    /// The container's id.
    CONTAINER_ID = "container.id";
    /// The container's name, outside pods.
    CONTAINER_NAME = "container.name";
    /// The container's image, as named by its runtime.
    CONTAINER_IMAGE_NAME = "container.image.name";
    /// The container's runtime: `containerd`, `cri-o`, `docker`, `podman`.
    CONTAINER_RUNTIME = "container.runtime.name";
    /// The Compose project of a container outside pods.
    COMPOSE_PROJECT = "container.label.com.docker.compose.project";
    /// The Compose service of a container outside pods.
    COMPOSE_SERVICE = "container.label.com.docker.compose.service";
    /// The Swarm service of a container outside pods.
    SWARM_SERVICE = "container.label.com.docker.swarm.service.name";
    /// The container's name in the pod.
    K8S_CONTAINER_NAME = "k8s.container.name";
    /// The pod's UID.
    K8S_POD_UID = "k8s.pod.uid";
    /// The pod's name.
    K8S_POD_NAME = "k8s.pod.name";
    /// The pod's namespace.
    K8S_NAMESPACE_NAME = "k8s.namespace.name";
    /// The pod's quality-of-service class: `guaranteed`, `burstable` or `besteffort`.
    K8S_POD_QOS = "k8s.pod.qos_class";
    /// The node's name in Kubernetes.
    K8S_NODE_NAME = "k8s.node.name";
    /// The pod's Deployment.
    K8S_DEPLOYMENT_NAME = "k8s.deployment.name";
    /// The pod's ReplicaSet.
    K8S_REPLICASET_NAME = "k8s.replicaset.name";
    /// The pod's StatefulSet.
    K8S_STATEFULSET_NAME = "k8s.statefulset.name";
    /// The pod's DaemonSet.
    K8S_DAEMONSET_NAME = "k8s.daemonset.name";
    /// The pod's Job.
    K8S_JOB_NAME = "k8s.job.name";
    /// The pod's CronJob.
    K8S_CRONJOB_NAME = "k8s.cronjob.name";
    /// Kind of the pod's workload, as in Kubernetes: `Deployment`, `PyTorchJob`, `RayCluster`, ….
    WORKLOAD_KIND = "gpuwho.workload.kind";
    /// Name of the pod's workload.
    WORKLOAD_NAME = "gpuwho.workload.name";
    /// Queue the workload was admitted through (Kueue, Volcano).
    WORKLOAD_QUEUE = "gpuwho.workload.queue";
    /// The Slurm job's number; its SLUID (Slurm 26.05) where the number is not known on the node.
    SLURM_JOB_ID = "slurm.job.id";
    /// The Slurm step: a number, `batch`, `extern` or `interactive`.
    SLURM_STEP_ID = "slurm.step.id";
    /// The Slurm task on this node.
    SLURM_TASK_ID = "slurm.task.id";
    /// The Slurm cluster.
    SLURM_CLUSTER_NAME = "slurm.cluster.name";
    /// The Slurm job's user.
    SLURM_JOB_USER = "slurm.job.user";
    /// The account the Slurm job is charged to.
    SLURM_JOB_ACCOUNT = "slurm.job.account";
    /// The Slurm job's partition.
    SLURM_JOB_PARTITION = "slurm.job.partition";
    /// The Slurm job's name.
    SLURM_JOB_NAME = "slurm.job.name";
    /// The job array's number, as shown to the user.
    SLURM_ARRAY_JOB_ID = "slurm.array.job.id";
    /// The task's index in the job array.
    SLURM_ARRAY_TASK_ID = "slurm.array.task.id";
    /// The least trusted source of this Slurm job's names: `cgroup`, `slurmstepd`, `prolog`,
    /// `mapping`, `process` (the kernel's user id) or `environment` (set by the user).
    SLURM_FACTS_SOURCE = "slurm.facts.source";
    /// Slurm's unique id of this run of the job (info series).
    SLURM_JOB_SLUID = "slurm.job.sluid";
    /// The leader of the heterogeneous job that the job is a component of (info series).
    SLURM_HET_JOB_ID = "slurm.het.job.id";
    /// The component's offset in its heterogeneous job (info series).
    SLURM_HET_JOB_OFFSET = "slurm.het.job.offset";
    /// Number of components of the heterogeneous job (info series).
    SLURM_HET_JOB_SIZE = "slurm.het.job.size";
    /// The user id of the Slurm job's user (info series).
    SLURM_JOB_UID = "slurm.job.uid";
    /// The Slurm job's quality of service (info series).
    SLURM_JOB_QOS = "slurm.job.qos";
    /// The Slurm job's nodes, in Slurm's notation (info series).
    SLURM_JOB_NODES = "slurm.job.nodes";
    /// Number of nodes of the Slurm job (info series).
    SLURM_JOB_NODE_COUNT = "slurm.job.node_count";
    /// Number of tasks of the Slurm job (info series).
    SLURM_JOB_TASK_COUNT = "slurm.job.task_count";
    /// Number of restarts of the Slurm job (info series).
    SLURM_JOB_RESTARTS = "slurm.job.restarts";
    /// The GPUs allocated to the Slurm job on this node, as numbered by Slurm or the mapping
    /// directory (info series).
    SLURM_JOB_GPUS = "slurm.job.gpus";
    /// The GPUs of the Slurm step on this node, as numbered by Slurm (info series).
    SLURM_STEP_GPUS = "slurm.step.gpus";
    /// The task's rank among all tasks of its step (info series).
    SLURM_TASK_RANK = "slurm.task.rank";
    /// The task's rank among the tasks of its step on this node (info series).
    SLURM_TASK_LOCAL_RANK = "slurm.task.local_rank";
    /// The systemd unit.
    SYSTEMD_UNIT = "systemd.unit";
    /// The LXC, nspawn or libvirt machine of the process.
    MACHINE_NAME = "gpuwho.machine.name";
    /// Another scheduler that the cgroup names: `nomad`, `htcondor`, `ecs`.
    SCHEDULER = "gpuwho.scheduler";
    /// Nomad's allocation, HTCondor's slot, ECS's task.
    SCHEDULER_ALLOCATION = "gpuwho.scheduler.allocation";
    /// Nomad's task.
    SCHEDULER_TASK = "gpuwho.scheduler.task";
    /// How the owner was found: `cgroup`, `kernel`, `slurmstepd` (a parent), `none`.
    OWNER_METHOD = "gpuwho.owner.method";
    /// The pod that a cgroup's name contains, where the workload may have made the cgroup itself: a
    /// claim, not an identity (info series).
    CLAIMED_POD_UID = "gpuwho.claimed.pod.uid";
    /// The container that a cgroup's name contains, where the workload may have made the cgroup
    /// itself (info series).
    CLAIMED_CONTAINER_ID = "gpuwho.claimed.container.id";
    /// The unit, as named by the service manager of a user or a machine (info series).
    CLAIMED_SYSTEMD_UNIT = "gpuwho.claimed.systemd.unit";
    /// The Slurm job that the process's own environment names, where no other source assigns it to
    /// a job (info series).
    CLAIMED_SLURM_JOB_ID = "gpuwho.claimed.slurm.job.id";
    /// The host's container that is the node of the pod's cluster (`kubernetes.nested`; info
    /// series).
    NODE_CONTAINER_ID = "gpuwho.node.container.id";
    /// Kind of owner: `pod`, `slurm_job`, `allocation`, `container`, `machine`, `service`, `user`,
    /// `other` (owners beyond the limit of a device) or `unattributed`.
    OWNER_KIND = "gpuwho.owner.kind";
    /// The source of a device allocation.
    GRANT_SOURCE = "gpu.allocation.source";
    /// Whether a device is allocated whole or in part.
    GRANT_KIND = "gpu.allocation.kind";
    /// The requested resource name: the device plugin's resource, the claim, `gres/gpu`.
    GRANT_RESOURCE = "gpu.allocation.resource";
    /// How many replicas of the device (time slicing, MPS) the owner has.
    GRANT_REPLICAS = "gpu.allocation.replicas";
    /// Driver of the resource claim (Dynamic Resource Allocation): `gpu.nvidia.com`.
    CLAIM_DRIVER = "gpu.allocation.claim.driver";
    /// The driver's pool from which the claim's device comes.
    CLAIM_POOL = "gpu.allocation.claim.pool";
    /// The driver's name of the claim's device.
    CLAIM_DEVICE = "gpu.allocation.claim.device";
    /// The share's id, if the claim's driver divides the device into shares.
    CLAIM_SHARE = "gpu.allocation.claim.share";
    /// CDI names that only this device of the claim has, comma-separated.
    CLAIM_CDI = "gpu.allocation.claim.cdi_devices";
    /// NUMA nodes of the device, according to its plugin: `0` or `0-1`.
    GRANT_NUMA = "gpu.allocation.numa_nodes";
    /// CPUs that the kubelet has pinned to the container: `2-5,8`.
    GRANT_CPUS = "gpu.allocation.cpus";
    /// Bytes of memory that the kubelet has pinned to the container.
    GRANT_MEMORY = "gpu.allocation.memory.size";
    /// NUMA nodes of that memory.
    GRANT_MEMORY_NUMA = "gpu.allocation.memory.numa_nodes";
    /// The owner's use of the allocated device.
    ALLOCATION_STATE = "gpu.allocation.state";
    /// Method by which an owner's share was found.
    SHARE_METHOD = "gpuwho.share.method";
    /// Evidence that a process is on a device.
    PRESENCE = "gpuwho.presence";
    /// What an owner did with a device's time.
    TIME_USE = "gpuwho.time.use";
    /// Outcome of a reload of the configuration.
    RELOAD_OUTCOME = "gpuwho.config.reload.outcome";
    /// Currency of an amount of money, by its ISO 4217 code.
    CURRENCY = "gpuwho.currency";
    /// Where a price comes from: `configured`.
    PRICE_SOURCE = "gpuwho.price.source";
    /// Day of a price, as configured (`gpu.price`).
    PRICE_DATE = "gpuwho.price.date";
    /// The team that an owner belongs to, by `[cost] teams`.
    TEAM = "gpuwho.team";
    /// Where the carbon intensity comes from.
    CARBON_SOURCE = "gpuwho.carbon.source";
    /// Why a receipt was made: `ended`, or `evicted` (more were open than the limit).
    RECEIPT_END = "gpuwho.receipt.end";
    /// GPU-hours that were allocated to the receipt's owner (events).
    RECEIPT_GRANTED = "gpuwho.receipt.gpu_hours.granted";
    /// GPU-hours that the receipt's owner used (events).
    RECEIPT_USED = "gpuwho.receipt.gpu_hours.used";
    /// GPU-hours that the receipt's owner had and did not use (events).
    RECEIPT_IDLE = "gpuwho.receipt.gpu_hours.idle";
    /// Joules of the receipt's owner (events).
    RECEIPT_ENERGY = "gpuwho.receipt.energy";
    /// Money for the devices' time of the receipt's owner (events).
    RECEIPT_COST = "gpuwho.receipt.cost";
    /// Grams of carbon dioxide of the receipt's owner (events).
    RECEIPT_CARBON = "gpuwho.receipt.carbon";
    /// The communicator: NCCL's own hash of it, in hex, the same on all ranks and nodes.
    NCCL_COMMUNICATOR = "nccl.communicator.id";
    /// Rank in the communicator.
    NCCL_RANK = "nccl.rank";
    /// Ranks of the communicator, on all nodes.
    NCCL_RANKS = "nccl.nranks";
    /// The communicator from which it was made.
    NCCL_PARENT = "nccl.communicator.parent";
    /// The communicator's name, as set by the program (`ncclConfig_t.commName`, or the parent's)
    /// and read by the probes or the Inspector: at most 64 bytes, cut with `…`, without control
    /// characters; one name for all ranks of the host. On `nccl.communicator.info` and events, and
    /// elsewhere only where the id is not known.
    NCCL_NAME = "nccl.communicator.name";
    /// How the communicator was made: `unique_id`, `init_all`, `split`, `shrink`, `grow` or
    /// `unknown`.
    NCCL_ORIGIN = "nccl.communicator.origin";
    /// The source of the communicator's identity and rank: `birth`, `memory`, `ras` or `unknown`.
    NCCL_KNOWN_BY = "nccl.communicator.known_by";
    /// State of a rank according to NCCL.
    NCCL_RANK_PRESENCE = "nccl.rank.presence";
    /// State of a process according to NCCL.
    NCCL_PEER_STATE = "nccl.peer.state";
    /// Outcome of a query to NCCL's status socket.
    NCCL_RAS_OUTCOME = "nccl.ras.outcome";
    /// Address of the node of a process that NCCL reports (events).
    NCCL_PEER_HOST = "nccl.peer.host";
    /// PID of that process on its node (events).
    NCCL_PEER_PID = "nccl.peer.pid";
    /// CUDA devices of that process, comma-separated (events).
    NCCL_PEER_DEVICES = "nccl.peer.devices";
    /// Which process and owner such a record names: `itself` where that process is or was on this
    /// node, otherwise `peer`, another process of its job on this node (events).
    NCCL_PEER_RECORD = "nccl.peer.record";
    /// Message size in bytes of the rank's open or latest call (events).
    NCCL_CALL_BYTES = "nccl.call.bytes";
    /// Whether that call has returned: `open` or `returned` (events).
    NCCL_CALL_STATE = "nccl.call.state";
    /// Seconds since that call (events).
    NCCL_CALL_AGE = "nccl.call.age";
    /// Number of collectives by which the rank is behind the foremost one on its node (events).
    NCCL_CALL_LAG = "nccl.call.lag";
    /// Device ordinal of the rank in its process.
    NCCL_DEVICE = "nccl.device";
    /// The library's version.
    NCCL_VERSION = "nccl.version";
    /// The library's file, by the process's own path.
    NCCL_LIBRARY = "nccl.library";
    /// The operation of a call.
    NCCL_OPERATION = "nccl.operation";
    /// Size of the message.
    NCCL_SIZE_CLASS = "nccl.size_class";
    /// State of a rank.
    NCCL_RANK_STATE = "nccl.rank.state";
    /// The level of the probes that the probe budget allows.
    NCCL_PROBE_LEVEL = "nccl.probe.level";
    /// The level of the probes before the change (events).
    NCCL_GOVERNOR_BEFORE = "nccl.probe.level.before";
    /// Measured hits a second and process (events).
    NCCL_GOVERNOR_RATE = "nccl.probe.hit_rate";
    /// Allowed hits a second and process (events).
    NCCL_GOVERNOR_BUDGET = "nccl.probe.hits_allowed";
    /// Which probes.
    NCCL_PROBE_PART = "nccl.probe";
    /// First 14 hex digits of the communicator's hash, because NCCL's Inspector writes no more;
    /// only where no other source has the whole hash.
    NCCL_COMMUNICATOR_PREFIX = "nccl.communicator.id_prefix";
    /// Algorithm that NCCL chose: `ring`, `tree`, `collnet_direct`, `collnet_chain`, `nvls`,
    /// `nvls_tree`, `pat` or `unknown`.
    NCCL_ALGORITHM = "nccl.algorithm";
    /// Protocol that NCCL chose: `ll`, `ll128`, `simple` or `unknown`.
    NCCL_PROTOCOL = "nccl.protocol";
    /// Lower bound of the message size in bytes, as rounded by the source.
    NCCL_MESSAGE_SIZE = "nccl.message.size";
    /// Outcome of a line in an Inspector file.
    NCCL_INSPECTOR_OUTCOME = "nccl.inspector.outcome";
    /// State of an Inspector file.
    NCCL_INSPECTOR_FILE_STATE = "nccl.inspector.file.state";
    /// Name of an event; on its log record it is the record's event name.
    EVENT_NAME = "gpuwho.event.name";
    /// Identifies the event of a log record: the same on the records of all affected owners
    /// (events).
    EVENT_ID = "gpuwho.event.id";
    /// Number of events that a record summarises; only on summaries (events).
    EVENT_COUNT = "gpuwho.event.count";
    /// The source that reported it: `kmsg` (the kernel log), `nvml` (the vendor library),
    /// `nvml+kmsg` (both), `nccl` (the probes), `nccl-ras` (NCCL's status socket) or
    /// `nccl-probe-budget` (the probe budget) (events).
    EVENT_SOURCE = "gpuwho.event.source";
    /// Its meaning, in one phrase (events).
    EVENT_MEANING = "gpuwho.event.meaning";
    /// The recommended action, in one phrase (events).
    EVENT_ACTION = "gpuwho.event.action";
    /// Processes of the record's owner that were on the device (events).
    EVENT_PROCESSES = "gpuwho.event.processes";
    /// Number of affected owners; each has a record of its own, up to a limit (events).
    EVENT_VICTIMS = "gpuwho.event.victims";
    /// Why the record's owner is affected: `named` (the source names its process, which held the
    /// device), `device` (the whole device is affected), `candidate` (one process on the device is
    /// affected, and the source does not name it) (events).
    EVENT_AFFECTED = "gpuwho.event.affected";
    /// Severity of an event; on its log record it is the record's severity.
    EVENT_SEVERITY = "gpuwho.event.severity";
    /// Code of an XID or SXid.
    GPU_XID_CODE = "gpu.xid.code";
    /// The driver's name of an XID (events).
    GPU_XID_NAME = "gpu.xid.name";
    /// The NVLink unit that an XID of 144 to 150 names (events).
    GPU_XID_UNIT = "gpu.xid.unit";
    /// That unit's error status, hexadecimal (events).
    GPU_XID_STATUS = "gpu.xid.status";
    /// Largest device memory of a process in its lifetime, in bytes (events).
    GPU_PROCESS_MEMORY_PEAK = "gpu.process.memory.peak";
    /// Fraction of its lifetime in which a process's kernels ran on the device (events).
    GPU_PROCESS_LIFETIME_UTILIZATION = "gpu.process.lifetime.utilization";
    /// Fraction of its lifetime in which a process read or wrote device memory (events).
    GPU_PROCESS_LIFETIME_MEMORY = "gpu.process.lifetime.memory.utilization";
    /// Seconds during which a process was on the device (events).
    GPU_PROCESS_LIFETIME = "gpu.process.lifetime.duration";
    /// The agent's source of data.
    SOURCE = "gpuwho.source";
    /// Why something was dropped.
    DROP_REASON = "gpuwho.drop.reason";
    /// The limit that the owner reached.
    OWNER_LIMIT = "gpuwho.owner.limit";
    /// Outcome of an export request.
    EXPORT_OUTCOME = "gpuwho.export.outcome";
    /// State of a source.
    SOURCE_STATE = "gpuwho.source.state";
    /// Which process of the agent.
    AGENT_PROCESS = "gpuwho.process";
    /// Stage of the agent's pipeline.
    STAGE = "gpuwho.stage";
}

/// The prefix of a container label's attribute name.
pub const CONTAINER_LABEL: &str = "container.label.";

/// Labels of pods that the configuration selects, on info series.
pub static K8S_POD_LABEL: PodKeys = PodKeys::new(
    "k8s.pod.label.",
    "A label of the pod that `[kubernetes] labels` selects; the name ends in its key.",
);
/// Annotations of pods that the configuration selects, on info series.
pub static K8S_POD_ANNOTATION: PodKeys = PodKeys::new(
    "k8s.pod.annotation.",
    "An annotation of the pod that `[kubernetes] annotations` selects; the name ends in its key.",
);

/// Attributes with a name that ends in a key of a pod, known only at run time.
#[derive(Debug)]
pub struct PodKeys {
    /// The prefix of the names.
    pub start: &'static str,
    /// Their description.
    pub description: &'static str,
    known: Mutex<Option<HashMap<Box<str>, &'static AttrKey>>>,
}

/// Largest number of names of each of the two: names stay while the agent runs, and a pattern of
/// the configuration can match any number of keys.
const MAX_POD_KEYS: usize = 256;

impl PodKeys {
    const fn new(start: &'static str, description: &'static str) -> Self {
        Self { start, description, known: Mutex::new(None) }
    }

    /// The attribute of a key; `None` when the limit is reached.
    pub fn key(&self, key: &str) -> Option<&'static AttrKey> {
        let mut known = self.known.lock();
        let known = known.get_or_insert_default();
        if let Some(attribute) = known.get(key) {
            return Some(attribute);
        }
        if known.len() >= MAX_POD_KEYS {
            return None;
        }
        let name: &'static str = Box::leak(format!("{}{key}", self.start).into_boxed_str());
        let attribute: &'static AttrKey =
            Box::leak(Box::new(AttrKey { name, description: self.description }));
        known.insert(key.into(), attribute);
        Some(attribute)
    }
}

/// An attribute's value. Text becomes a value only through `From`, which replaces characters that
/// are not printable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttrValue {
    /// Text.
    Str(Arc<str>),
    /// A whole number.
    Int(i64),
    /// A measured number, on records of events.
    Double(Double),
}

/// A number that is compared by its bits, because a set of attributes is a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Double(u64);

impl Double {
    /// The number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl AttrValue {
    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            Self::Int(_) | Self::Double(_) => None,
        }
    }
}

impl fmt::Display for AttrValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Str(text) => f.write_str(text),
            Self::Int(number) => write!(f, "{number}"),
            Self::Double(number) => write!(f, "{}", number.get()),
        }
    }
}

impl From<f64> for AttrValue {
    fn from(number: f64) -> Self {
        Self::Double(Double(number.to_bits()))
    }
}

impl From<&str> for AttrValue {
    fn from(text: &str) -> Self {
        Self::Str(Arc::from(&*printable(text)))
    }
}

impl From<Arc<str>> for AttrValue {
    fn from(text: Arc<str>) -> Self {
        Self::Str(printable_arc(text))
    }
}

impl From<i64> for AttrValue {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

/// A complete set of attributes, in the order they are written, each key once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AttrSet(Vec<(&'static AttrKey, AttrValue)>);

impl AttrSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an attribute; a key already there keeps its place and takes the new value.
    pub fn set(&mut self, key: &'static AttrKey, value: impl Into<AttrValue>) {
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| known.name == key.name) {
            Some((_, old)) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    /// Sets an attribute if there is a value.
    pub fn set_some<V: Into<AttrValue>>(&mut self, key: &'static AttrKey, value: Option<V>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// Adds every attribute of `other`.
    pub fn extend(&mut self, other: &Self) {
        for (key, value) in &other.0 {
            self.set(key, value.clone());
        }
    }

    /// The attributes in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static AttrKey, &AttrValue)> + Clone {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// The value of one attribute.
    pub fn get(&self, key: &AttrKey) -> Option<&AttrValue> {
        self.0.iter().find(|(known, _)| known.name == key.name).map(|(_, value)| value)
    }

    /// Whether every attribute of `other` is in this set, with the same value.
    pub fn holds(&self, other: &Self) -> bool {
        other.iter().all(|(key, value)| self.get(key) == Some(value))
    }

    /// Gives back the memory for further attributes.
    pub(crate) fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Number of attributes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

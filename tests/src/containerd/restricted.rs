//! The `securityContext` of a container that is not privileged.

use gpuwho_kubernetes::cri::{
    Capability, LinuxContainerSecurityContext, NamespaceOption, SecurityProfile,
};

/// A container with a root file system that is read-only, these capabilities and no others, no way to
/// get more, the runtime's own filter of system calls, and a kubelet's usual masks over `/proc`.
#[derive(Clone, Copy, Debug)]
pub struct Restricted<'a> {
    /// Names without `CAP_`.
    pub capabilities: &'a [String],
}

/// What a kubelet hides (`procMount: Default`, Kubernetes 1.33).
const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// What it makes read-only.
const READ_ONLY: &[&str] =
    &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

pub(super) fn security(
    namespaces: NamespaceOption,
    restricted: Option<Restricted<'_>>,
) -> LinuxContainerSecurityContext {
    let namespace_options = Some(namespaces);
    let Some(Restricted { capabilities }) = restricted else {
        return LinuxContainerSecurityContext {
            namespace_options,
            ..LinuxContainerSecurityContext::default()
        };
    };
    let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    LinuxContainerSecurityContext {
        capabilities: Some(Capability {
            add_capabilities: capabilities.to_vec(),
            drop_capabilities: vec!["ALL".into()],
        }),
        namespace_options,
        readonly_rootfs: true,
        no_new_privs: true,
        masked_paths: paths(MASKED),
        readonly_paths: paths(READ_ONLY),
        seccomp: Some(SecurityProfile {}),
    }
}

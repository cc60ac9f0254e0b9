//! The capabilities that the agent uses, and what does not work without each. The unit file, the
//! DaemonSet and install.md name the same ones.

use rustix::thread::{CapabilitySet, capabilities};

/// A capability that the agent uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its bit.
    pub capability: CapabilitySet,
    /// Its name.
    pub name: &'static str,
    /// What does not work without it.
    pub without: &'static str,
}

/// All of them. The reader child drops them before it loads a vendor's library.
pub const NEEDS: &[Need] = &[
    Need {
        capability: CapabilitySet::SYS_ADMIN,
        name: "CAP_SYS_ADMIN",
        without: "no BPF, so the agent scans /proc for processes and does not count collectives; \
            it cannot enter pods' networks to query NCCL and engines; in a container it finds no owner",
    },
    Need {
        capability: CapabilitySet::SYS_PTRACE,
        name: "CAP_SYS_PTRACE",
        without: "open files, mappings and environment of other users' processes are hidden: \
            processes from before the agent (with the cgroup hook all of theirs) and names of jobs and \
            ranks are missing",
    },
    Need {
        capability: CapabilitySet::DAC_READ_SEARCH,
        name: "CAP_DAC_READ_SEARCH",
        without: "other users' directories, with /proc/PID/fd, are not readable: processes from \
            before the agent (with the cgroup hook all of theirs) and the Inspector's files are not \
            found; cgroups are found by walking",
    },
    Need {
        capability: CapabilitySet::SYSLOG,
        name: "CAP_SYSLOG",
        without: "the kernel log is not readable where kernel.dmesg_restrict is 1: XIDs, bus errors and \
            OOM kills in it are not reported",
    },
];

/// The capabilities that this process does not have.
pub fn missing() -> Vec<&'static Need> {
    // The call does not fail for the own process.
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    NEEDS.iter().filter(|need| !held.contains(need.capability)).collect()
}

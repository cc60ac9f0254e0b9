//! The capabilities that the agent uses, and what goes where one is missing. The unit file, the
//! DaemonSet and the README name the same ones.

use rustix::thread::{CapabilitySet, capabilities};

/// A capability that the agent uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its bit.
    pub capability: CapabilitySet,
    /// Its name.
    pub name: &'static str,
    /// What there is not without it.
    pub without: &'static str,
}

/// All of them. The reader of a vendor's library gives them up before it loads it.
pub const NEEDS: &[Need] = &[
    Need {
        capability: CapabilitySet::SYS_ADMIN,
        name: "CAP_SYS_ADMIN",
        without: "no BPF, so processes are looked for in /proc and collectives are not counted; \
            pods' networks are not entered to ask NCCL and engines; in a container no owner is found",
    },
    Need {
        capability: CapabilitySet::SYS_PTRACE,
        name: "CAP_SYS_PTRACE",
        without: "what other users' processes have open, mapped and in their environment is \
            hidden: holders from before the agent, names of jobs and ranks are missing",
    },
    Need {
        capability: CapabilitySet::DAC_READ_SEARCH,
        name: "CAP_DAC_READ_SEARCH",
        without: "other users' folders are closed, /proc/PID/fd among them: holders from before \
            the agent and the Inspector's files are not found; cgroups are looked for by walking",
    },
    Need {
        capability: CapabilitySet::SYSLOG,
        name: "CAP_SYSLOG",
        without: "the kernel log is closed where kernel.dmesg_restrict is 1: XIDs, bus errors and \
            OOM kills in it are not told",
    },
];

/// Those that this process has not got.
pub fn missing() -> Vec<&'static Need> {
    // The call fails for no reason that a process of one's own could give.
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    NEEDS.iter().filter(|need| !held.contains(need.capability)).collect()
}

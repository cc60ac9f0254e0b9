//! The processors that kernels are booted on: what Debian, Rust and QEMU call each, which kernels
//! are tried there, and what builds for it on a machine that is another.

use crate::cross::{ARM64, Cross};
use std::env::consts::ARCH;

/// The prefix that stands for the newest kernel of all.
pub(super) const NEWEST: &str = "newest";

/// One kind of machine.
#[derive(Debug)]
pub(super) struct Machine {
    /// As Debian calls its processor, also at the end of a kernel's name.
    pub(super) name: &'static str,
    /// As Rust calls it.
    arch: &'static str,
    /// The emulator.
    pub(super) emulator: &'static str,
    /// What it emulates.
    pub(super) options: &'static [&'static str],
    /// Its serial console.
    pub(super) console: &'static str,
    /// The part of `cargo xtask setup` that has what it needs.
    pub(super) part: &'static str,
    /// Kernels that are tried when none is named.
    pub(super) kernels: &'static [&'static str],
    /// Tests beside those of every machine: of what is read out of machine code.
    pub(super) tests: &'static [&'static str],
    /// The first kernel series with trampolines for BPF, which `fexit` needs.
    trampolines: (u32, u32),
    cross: Option<&'static Cross>,
}

/// All of them, in the order they are tried. `q35` and `virt` can power off. A processor for arm64
/// signs return addresses: with its usual cipher a boot takes an emulator three times as long, so
/// it has another.
pub(super) const MACHINES: &[Machine] = &[
    Machine {
        name: "amd64",
        arch: "x86_64",
        emulator: "qemu-system-x86_64",
        options: &["-machine", "q35", "-cpu", "max"],
        console: "ttyS0",
        part: "vm",
        // Debian 11, 12, 12 backports, and the newest there is.
        kernels: &["5.10", "6.1", "6.12", NEWEST],
        // Run on this machine's own kernel by `cargo xtask test`.
        tests: &[],
        trampolines: (5, 5),
        cross: None,
    },
    Machine {
        name: "arm64",
        arch: "aarch64",
        emulator: "qemu-system-aarch64",
        options: &["-machine", "virt", "-cpu", "max,pauth-impdef=on"],
        console: "ttyAMA0",
        part: "arm64",
        // The oldest way to everything, and the newest.
        kernels: &["6.1", NEWEST],
        tests: &["communicators_from_before_the_agent_have_their_rank"],
        trampolines: (6, 4),
        cross: Some(&ARM64),
    },
];

impl Machine {
    /// Whether this program runs on such a machine.
    pub(super) fn is_here(&self) -> bool {
        self.arch == ARCH
    }

    /// What builds for it, where this machine's own compiler does not.
    pub(super) fn cross(&self) -> Option<&'static Cross> {
        self.cross.filter(|_| !self.is_here())
    }

    /// Whether anything here builds for it.
    pub(super) fn can_be_built_for(&self) -> bool {
        self.is_here() || self.cross.is_some()
    }

    /// Whether a kernel can have BPF programs at the end of its own functions.
    pub(super) fn has_trampolines(&self, version: &str) -> bool {
        let mut numbers = version.split('.').map_while(|number| number.parse().ok());
        (numbers.next(), numbers.next()) >= (Some(self.trampolines.0), Some(self.trampolines.1))
    }
}

/// The names, for the command line.
pub(super) fn names() -> Vec<&'static str> {
    MACHINES.iter().map(|machine| machine.name).collect()
}

#[cfg(test)]
mod tests {
    use super::MACHINES;

    #[test]
    fn a_kernel_without_trampolines_is_older_than_the_first_that_has_them() {
        let has = |at: usize| {
            let versions = ["5.10.0-46-cloud", "6.1.0-56-cloud", "6.12.117+deb12-cloud", "7.3.4"];
            versions.map(|version| MACHINES[at].has_trampolines(version))
        };
        assert_eq!(has(0), [true; 4]);
        assert_eq!(has(1), [false, false, true, true]);
    }
}

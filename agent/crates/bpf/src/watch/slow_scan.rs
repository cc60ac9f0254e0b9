//! When the scan of `/proc` that goes on all the time looks at which processes: at each once in the interval, in steps
//! of less than a millisecond.
//!
//! A pass has [`PARTS`](ScanPass::next_part) parts by the numbers of processes, each in its own time. A process that is
//! looked at first in its part and last in the next pass is found within the interval, since the time of one part more
//! than the pass has is in it; so is one that began after its part did.

use super::{Loaded, Rings, Watch};
use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute::Evidence;
use gpuwho_owners::nodes::Nodes;
use gpuwho_owners::proc_scan::{Holder, PARTS, ScanPass};
use std::time::{Duration, Instant};

/// Descriptors of a step: some 0.6 ms. A process with more is looked at in one.
const OF_STEP: usize = 512;

/// The scan.
#[derive(Debug)]
pub(super) struct SlowScan {
    pub pass: ScanPass,
    /// When there is something to do next.
    pub next: Instant,
    /// When the next part begins.
    part_ends: Instant,
    /// Time of a part.
    of_part: Duration,
    /// Parts until the next pass.
    parts: u32,
}

impl SlowScan {
    /// The first pass begins after the time of a part.
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        let of_part = interval / (PARTS + 1);
        let part_ends = now + of_part;
        Self { pass: ScanPass::default(), next: part_ends, part_ends, of_part, parts: 0 }
    }

    /// Begins a part where it is its time; true if a pass begins with it. Where there is nothing that a process could
    /// hold, none is looked at.
    pub(super) fn begin(&mut self, paths: &Paths, nodes: &Nodes, now: Instant) -> bool {
        if now < self.part_ends {
            return false;
        }
        if nodes.is_empty() {
            self.pass = ScanPass::default();
        } else {
            self.pass.next_part(paths);
        }
        // A part that comes late does not make the next ones late.
        self.part_ends = (self.part_ends + self.of_part).max(now);
        let begins = self.parts == 0;
        self.parts = self.parts.checked_sub(1).unwrap_or(PARTS - 1);
        begins
    }

    /// The holders among some processes of the part; the steps that are left have all of its time that is left.
    pub(super) fn step(
        &mut self,
        paths: &Paths,
        nodes: &Nodes,
        now: Instant,
    ) -> Option<Vec<Holder>> {
        let before = self.pass.left();
        let holders = self.pass.step_of(OF_STEP, paths, nodes);
        let left = self.pass.left();
        let steps = left.div_ceil((before - left).max(1));
        let time = self.part_ends.saturating_duration_since(now);
        self.next = now + time / u32::try_from(steps + 1).unwrap_or(u32::MAX);
        if left == 0 {
            self.next = self.part_ends;
        }
        holders
    }
}

impl<E: FnMut(Evidence)> Watch<E> {
    /// A step of the scan without haste.
    pub(super) fn scan_slowly(
        &mut self,
        bpf: &mut Loaded,
        (rings, slow): (&mut Rings, &mut SlowScan),
        now: Instant,
    ) {
        if slow.begin(&self.paths, &self.nodes, now) {
            self.refresh_nodes(bpf);
            self.find_unreported(bpf, rings);
        }
        if let Some(holders) = slow.step(&self.paths, &self.nodes, now) {
            let found_now = self.tracker.take(&holders, &self.nodes);
            self.emit_found(bpf, found_now);
        }
        if slow.pass.left() == 0 {
            self.end_missing(&slow.pass);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::ids::ProcKey;
    use gpuwho_owners::attribute::fake::FakeHost;
    use gpuwho_owners::nodes;
    use std::fs;

    /// Every process is looked at once in an interval, wherever it is among the others and whatever comes and goes, and no step
    /// is more than it may be.
    #[test]
    fn the_steps_of_a_pass_are_small_and_the_last_ends_with_its_time() {
        let host = FakeHost::new();
        for pid in 1_000..1_160 {
            host.start(ProcKey { pid, start_ticks: 1 }, "many", "0::/a\n");
            let folder = host.paths.proc.join(format!("{pid}/fd"));
            fs::create_dir_all(&folder).unwrap();
            (0..60).for_each(|number| fs::write(folder.join(number.to_string()), "").unwrap());
        }
        let interval = Duration::from_secs(340);
        let nodes = vec!["/dev/null".into()];
        let null = nodes::Settings { nodes, drivers: Vec::new(), vendors: &[] };
        let nodes = Nodes::read(&null, &Paths::default());
        let start = Instant::now();
        let mut slow = SlowScan::new(interval, start);
        let (mut passes, mut looked, mut now) = (Vec::new(), 0, start);
        while now < start + interval * 3 {
            now = slow.next;
            if slow.begin(&host.paths, &nodes, now) {
                passes.push((now.duration_since(start).as_secs(), std::mem::take(&mut looked)));
            }
            let before = slow.pass.left();
            slow.step(&host.paths, &nodes, now);
            let step = before - slow.pass.left();
            assert!(step <= OF_STEP / 61 + 1, "{step} processes of 60 descriptors");
            looked += step;
            assert!(slow.next > now && slow.next <= now + Duration::from_secs(20));
        }
        assert_eq!(passes, [(20, 0), (340, 160), (660, 160), (980, 160)]);
        slow.begin(&host.paths, &Nodes::default(), slow.part_ends);
        assert_eq!(slow.pass.left(), 0, "there is nothing that a process could hold");
    }
}

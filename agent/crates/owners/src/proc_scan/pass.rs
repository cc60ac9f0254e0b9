//! One pass over all processes in steps, so that a caller does other work in between, with limits on
//! the descriptors that are looked at.

use super::{Holder, OpenDevices, holder};
use crate::nodes::Nodes;
use crate::process::Folder;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::{Hash as _, Hasher as _};

/// Descriptors of a process that are looked at in any case.
const OF_PROCESS: usize = 256;
/// Descriptors beyond these that are looked at in a pass, of all processes of one cgroup: some 0.1 s.
const OF_CGROUP: usize = 65_536;
/// Cgroups that such descriptors are counted for; those of the others are left out.
const MAX_CGROUPS: usize = 4096;
/// Descriptors of one step: some 20 ms.
const OF_STEP: usize = 16_384;
/// Parts of all processes, by their numbers, in which a pass without haste looks at them.
pub const PARTS: u32 = 16;

/// A pass.
#[derive(Debug, Default)]
pub struct ScanPass {
    pids: std::vec::IntoIter<u32>,
    /// The part that it looks at; all where there is none.
    part: Option<u32>,
    /// Descriptors left by cgroup.
    left: HashMap<u64, usize>,
    /// The holders found so far.
    holding: HashSet<ProcKey>,
    /// Processes whose descriptors were not all looked at.
    incomplete: u64,
}

impl ScanPass {
    /// A pass over the processes that exist now.
    pub fn begin(paths: &Paths) -> Self {
        Self { pids: pids(paths, |_| true), ..Self::default() }
    }

    /// Goes on with the next part of the processes that exist now; after the last part a new pass begins.
    pub fn next_part(&mut self, paths: &Paths) {
        let part = self.part.map_or(0, |part| (part + 1) % PARTS);
        let left = if part == 0 { HashMap::new() } else { std::mem::take(&mut self.left) };
        let pids = pids(paths, |pid| pid % PARTS == part);
        *self = Self { pids, part: Some(part), left, ..Self::default() };
    }

    /// How many processes are left of those that are looked at.
    pub fn left(&self) -> usize {
        self.pids.len()
    }

    /// The holders found in the next step; `None` at the end.
    pub fn step(&mut self, paths: &Paths, nodes: &Nodes) -> Option<Vec<Holder>> {
        self.step_of(OF_STEP, paths, nodes)
    }

    /// The same of a step that ends after so many descriptors.
    pub fn step_of(&mut self, most: usize, paths: &Paths, nodes: &Nodes) -> Option<Vec<Holder>> {
        let mut holders = Vec::new();
        let mut looks = 0;
        while looks < most {
            let Some(pid) = self.pids.next() else { break };
            // A process costs something without any descriptor.
            looks += 1;
            let Some(folder) = Folder::open(paths, pid) else { continue };
            let mut cgroup = None;
            let open = OpenDevices::of((pid, &folder), None, &mut |number| {
                let may_look = number < OF_PROCESS || self.charge(&folder, &mut cgroup);
                looks += usize::from(may_look);
                may_look
            });
            self.incomplete += u64::from(!open.is_complete);
            if let Some(holder) = holder(paths, nodes, (pid, &folder), open) {
                self.holding.insert(holder.process);
                holders.push(holder);
            }
        }
        (looks > 0).then_some(holders)
    }

    /// Whether it has looked for a process, and not found that it holds a device.
    pub(super) fn misses(&self, process: ProcKey) -> bool {
        let is_of_part = self.part.is_none_or(|part| process.pid % PARTS == part);
        is_of_part && !self.holding.contains(&process)
    }

    /// How many processes were looked at in part.
    pub fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// Counts a descriptor for the process's cgroup; false if none is left.
    fn charge(&mut self, folder: &Folder, cgroup: &mut Option<u64>) -> bool {
        let key = *cgroup.get_or_insert_with(|| {
            let mut hasher = DefaultHasher::new();
            folder.text("cgroup").hash(&mut hasher);
            hasher.finish()
        });
        if self.left.len() >= MAX_CGROUPS && !self.left.contains_key(&key) {
            return false;
        }
        let left = self.left.entry(key).or_insert(OF_CGROUP);
        let may_look = *left > 0;
        *left = left.saturating_sub(1);
        may_look
    }
}

/// The numbers of processes that exist now.
fn pids(paths: &Paths, is_wanted: impl Fn(u32) -> bool) -> std::vec::IntoIter<u32> {
    let entries = fs::read_dir(&paths.proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_wanted(*pid)).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::fake::FakeHost;

    /// A host with one process for each number of descriptors, all in the named cgroups.
    fn host(processes: &[(usize, &str)]) -> FakeHost {
        let host = FakeHost::new();
        for (pid, (count, cgroup)) in (100..).zip(processes) {
            let process = ProcKey { pid, start_ticks: 1 };
            host.start(process, "many", &format!("0::/{cgroup}\n"));
            let folder = host.paths.proc.join(format!("{pid}/fd"));
            fs::create_dir_all(&folder).unwrap();
            for number in 0..*count {
                fs::write(folder.join(number.to_string()), "").unwrap();
            }
        }
        host
    }

    fn pass(host: &FakeHost, left: usize) -> (u64, usize) {
        let mut pass = ScanPass::begin(&host.paths);
        for group in ["a", "b"] {
            let mut hasher = DefaultHasher::new();
            Some(format!("0::/{group}\n")).hash(&mut hasher);
            pass.left.insert(hasher.finish(), left);
        }
        let mut steps = 0;
        while pass.step(&host.paths, &Nodes::default()).is_some() {
            steps += 1;
        }
        (pass.incomplete(), steps)
    }

    #[test]
    fn descriptors_of_one_cgroup_do_not_take_those_of_another() {
        let host = host(&[(300, "a"), (300, "a"), (300, "b"), (256, "a")]);
        assert_eq!(pass(&host, 1000).0, 0);
        assert_eq!(pass(&host, 44).0, 1, "the second of a");
        assert_eq!(pass(&host, 10).0, 3, "all but the small one");
    }

    #[test]
    fn parts_are_all_processes_and_share_what_a_cgroup_has() {
        let host = host(&[(300, "a"); 40]);
        let mut pass = ScanPass::default();
        let mut seen = Vec::new();
        for part in 0..PARTS {
            pass.next_part(&host.paths);
            assert_eq!(pass.part, Some(part));
            seen.extend(pass.pids.clone());
            // One process is more than this step.
            let left = pass.left();
            assert_eq!(pass.step_of(100, &host.paths, &Nodes::default()).unwrap().len(), 0);
            assert_eq!(pass.left(), left - 1);
            assert!(pass.misses(ProcKey { pid: part, start_ticks: 1 }));
            assert!(!pass.misses(ProcKey { pid: part + 1, start_ticks: 1 }));
            assert_eq!(pass.left.values().sum::<usize>(), OF_CGROUP - 44 * (part as usize + 1));
        }
        seen.sort_unstable();
        assert_eq!(seen, (100..140).collect::<Vec<u32>>());
        pass.next_part(&host.paths);
        assert_eq!((pass.part, pass.left.len()), (Some(0), 0));
    }

    #[test]
    fn many_descriptors_are_more_than_one_step() {
        let many = [(OF_PROCESS, "a"); OF_STEP / OF_PROCESS + 1];
        assert_eq!(pass(&host(&many), 0), (0, 2));
    }
}

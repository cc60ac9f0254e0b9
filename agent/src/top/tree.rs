//! The owners as a tree: namespace, user of Slurm, units or user; then the pod, job or unit; then its
//! processes. What a level has is the sum of what is below it.

use super::filter::Filter;
use crate::who::table::row::names;
use crate::who::{Device, HostReport, Process};
use gpuwho_owners::attribute::view::OwnerView;
use std::collections::{BTreeMap, BTreeSet};

/// A node of the tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Node {
    /// What it is called.
    pub(super) name: String,
    /// Names it among all nodes.
    pub(super) key: String,
    /// The devices it is on.
    pub(super) devices: BTreeSet<String>,
    /// Processes on devices; one on two devices counts twice.
    pub(super) processes: usize,
    /// Device memory held.
    pub(super) memory: Option<i64>,
    /// Devices kept busy: 1.5 is one and a half.
    pub(super) busy: Option<f64>,
    /// Users.
    pub(super) users: BTreeSet<String>,
    pub(super) children: Vec<Node>,
}

/// An order of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Memory,
    Busy,
    Devices,
    Name,
}

impl Order {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Busy => "util",
            Self::Devices => "GPUs",
            Self::Name => "name",
        }
    }

    pub(super) fn next(self) -> Self {
        match self {
            Self::Memory => Self::Busy,
            Self::Busy => Self::Devices,
            Self::Devices => Self::Name,
            Self::Name => Self::Memory,
        }
    }
}

/// What one process has of one device.
struct Share<'a> {
    device: &'a str,
    user: &'a str,
    memory: Option<i64>,
    busy: Option<f64>,
}

impl Node {
    fn add(&mut self, share: &Share<'_>) {
        self.devices.insert(share.device.to_owned());
        self.users.insert(share.user.to_owned());
        self.processes += 1;
        self.memory = plus(self.memory, share.memory, i64::saturating_add);
        self.busy = plus(self.busy, share.busy, |one, other| one + other);
    }

    fn sort(&mut self, order: Order) {
        self.children.sort_by(|one, other| {
            let names = one.name.cmp(&other.name);
            match order {
                Order::Memory => other.memory.cmp(&one.memory).then(names),
                Order::Busy => {
                    let busy = |node: &Self| node.busy.unwrap_or(-1.0);
                    busy(other).total_cmp(&busy(one)).then(names)
                }
                Order::Devices => other.devices.len().cmp(&one.devices.len()).then(names),
                Order::Name => names,
            }
        });
        self.children.iter_mut().for_each(|child| child.sort(order));
    }
}

fn plus<T: Copy>(one: Option<T>, other: Option<T>, add: fn(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(add(one, other)),
        (one, other) => one.or(other),
    }
}

/// The tree of all processes that a filter leaves; the root is nobody.
pub(super) fn build(report: &HostReport, filter: &Filter, order: Order) -> Node {
    let mut root = Node::default();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for device in &report.devices {
        let name = report.name(device);
        for process in &device.processes {
            if filter.has(report, device, process) {
                let share = share(&name, device, process);
                put(&mut root, &mut places, &process.owner, &share);
            }
        }
        // Processes that are not named to who asks.
        if let Some(others) = device.others.as_ref().filter(|_| filter.is_empty()) {
            let share = Share { device: &name, user: "", memory: others.memory_bytes, busy: None };
            let node = child(&mut root, &mut places, "other users (run as root to see them)", "");
            node.add(&share);
            node.processes += others.processes.saturating_sub(1);
        }
    }
    root.sort(order);
    root
}

fn share<'a>(name: &'a str, device: &Device, process: &'a Process) -> Share<'a> {
    let is_alone = device.processes.len() == 1;
    // The device's own, where its only process has none: the counters' `exclusive`.
    let own = device.memory_exclusive_bytes.filter(|_| is_alone);
    let busy = process.utilization.or(device.utilization.filter(|_| is_alone));
    Share { device: name, user: &process.owner.user, memory: process.memory_bytes.or(own), busy }
}

fn put(
    root: &mut Node,
    places: &mut BTreeMap<String, usize>,
    owner: &OwnerView,
    share: &Share<'_>,
) {
    root.add(share);
    let group = child(root, places, &group(owner), "");
    group.add(share);
    let [whole, workload] = names(owner);
    let is_known = owner.owner.is_some() && workload != "-";
    let key = group.key.clone();
    let workload = if is_known { workload } else { owner.comm.clone() };
    let workload = child(group, places, &workload, &key);
    workload.add(share);
    let key = workload.key.clone();
    let part = whole.strip_prefix(&workload.name).unwrap_or_default();
    let process = format!("{} {}{part}", owner.pid, owner.comm);
    child(workload, places, &process, &key).add(share);
}

/// The child of a name, made where it is missing.
fn child<'a>(
    of: &'a mut Node,
    places: &mut BTreeMap<String, usize>,
    name: &str,
    above: &str,
) -> &'a mut Node {
    let key = format!("{above}/{name}");
    let next = of.children.len();
    let place = *places.entry(key.clone()).or_insert(next);
    if place == next {
        of.children.push(Node { name: name.to_owned(), key, ..Node::default() });
    }
    let place = place.min(of.children.len() - 1);
    &mut of.children[place]
}

/// What an owner is in at the highest level.
fn group(owner: &OwnerView) -> String {
    if let Some(namespace) = &owner.namespace {
        return format!("namespace {namespace}");
    }
    if owner.pod.is_some() {
        return "pods".to_owned();
    }
    if owner.slurm_job.is_some() {
        return format!("slurm {}", owner.user);
    }
    if owner.container_id.is_some() {
        return "containers".to_owned();
    }
    if owner.method == "none" || owner.uid.is_none() {
        return "unknown".to_owned();
    }
    format!("user {}", owner.user)
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    /// That a node has the sum of its children.
    fn check(node: &Node) {
        let below = |of: fn(&Node) -> i64| node.children.iter().map(of).sum::<i64>();
        if !node.children.is_empty() {
            assert_eq!(node.memory.unwrap_or(0), below(|node| node.memory.unwrap_or(0)));
            let processes: usize = node.children.iter().map(|node| node.processes).sum();
            assert_eq!(node.processes, processes);
        }
        node.children.iter().for_each(check);
    }

    #[test]
    fn each_level_has_the_sum_of_what_is_below() {
        let report = fixture::report();
        let tree = build(&report, &Filter::default(), Order::Memory);
        let names: Vec<_> = tree.children.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["namespace serving", "slurm alice", "user bob"]);
        check(&tree);
        let pod = &tree.children[0].children[0];
        assert_eq!((pod.name.as_str(), pod.devices.len()), ("serving/llama-0", 1));
        assert_eq!(pod.children[0].name, "10 vllm [server]");
    }

    #[test]
    fn a_filter_leaves_what_it_names_and_the_order_is_the_asked_one() {
        let report = fixture::report();
        let alice = build(&report, &Filter::parse("user==alice").unwrap(), Order::Memory);
        assert_eq!((alice.children.len(), alice.processes), (1, 1));
        let by_name = build(&report, &Filter::default(), Order::Name);
        let by_busy = build(&report, &Filter::default(), Order::Busy);
        assert_eq!(by_name.children[0].name, "namespace serving");
        assert_eq!(by_busy.children[0].name, "namespace serving");
        assert_eq!(by_busy.children[2].name, "user bob");
    }
}

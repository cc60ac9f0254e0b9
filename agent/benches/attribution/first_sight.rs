//! From a process that opens a device in a container nobody has heard of to its owner with the
//! pod's and the container's name, and what the thread that asks costs.

use crate::runtime::Runtime;
use crate::scene::{BEGAN_NS, CONTAINERS, Host, Place};
use gpuwho_model::ids::ProcKey;
use gpuwho_model::status::StatusRegistry;
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::providers::{
    Containers, Kubernetes, MetadataProviders, Settings, THREAD,
};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// For what takes milliseconds, on a machine under load.
const WITHIN: Duration = Duration::from_secs(20);
/// Between two complete lists, and a little.
const IDLE: Duration = Duration::from_mins(1);
/// Of 99 of 100 containers.
const TARGET_MS: f64 = 10.0;

/// A host whose runtime answers.
struct Node {
    host: Host,
    ownership: Ownership,
    runtime: Runtime,
}

/// Measures and prints.
pub(crate) fn measure(idle: bool) {
    let mut took = one_by_one();
    took.sort_unstable();
    let at = |part: usize| millis(took.get(took.len() * part / 100).copied().unwrap_or_default());
    println!(
        "| first sight of a container, without the runtime's own time | median {:.2} ms, p99 {:.2} ms, most {:.2} \
         ms of {} | < {TARGET_MS} ms | {} |",
        at(50),
        at(99),
        millis(took.last().copied().unwrap_or_default()),
        took.len(),
        if at(99) < TARGET_MS { "met" } else { "MISSED" },
    );
    at_once(idle);
}

/// Containers that start one after the other, each with a process.
fn one_by_one() -> Vec<Duration> {
    let node = Node::new(0);
    let sight = |number| {
        let place = Place::of(number);
        node.runtime.start(Place::of(number));
        node.runtime.take_time();
        let began = Instant::now();
        let process = node.host.opens(&node.ownership, number, &place);
        node.wait_for_name(process);
        began.elapsed().saturating_sub(node.runtime.take_time())
    };
    (0..CONTAINERS).map(sight).collect()
}

/// An agent that starts on a host where everybody is there already, and a minute after.
fn at_once(idle: bool) {
    let node = Node::new(CONTAINERS);
    let last = Place::of(CONTAINERS - 1);
    let process = node.host.opens(&node.ownership, CONTAINERS - 1, &last);
    node.wait_for_name(process);
    let start = thread_nanos();
    println!("| thread `{THREAD}`, start with {CONTAINERS} containers | {:.2} ms |", start / 1e6);
    if idle {
        let lists = node.runtime.lists();
        let end = Instant::now() + IDLE + WITHIN;
        while node.runtime.lists() == lists && Instant::now() < end {
            thread::sleep(Duration::from_millis(100));
        }
        // What it learns of the list comes after the answer.
        thread::sleep(Duration::from_secs(1));
        let minute = thread_nanos() - start;
        println!("| thread `{THREAD}`, a minute without news | {:.2} ms |", minute / 1e6);
    }
}

impl Node {
    /// A runtime with some containers, and providers that have had their first look.
    fn new(containers: u32) -> Self {
        let (host, runtime) = (Host::new(), Runtime::default());
        let socket = host.paths.proc.with_file_name("cri.sock");
        (0..containers).map(Place::of).for_each(|place| runtime.start(place));
        runtime.serve(&socket);
        let ownership = Ownership::with_clock(&host.paths, || BEGAN_NS);
        let kubernetes = Kubernetes { cri: vec![socket], ..Kubernetes::default() };
        let settings = Settings {
            paths: host.paths.clone(),
            kubernetes,
            containers: Containers::default(),
            vendors: gpuwho_devices::nodes(),
        };
        let mut providers =
            MetadataProviders::start_for(settings, &ownership, &StatusRegistry::default());
        providers.start().unwrap();
        providers.wait(WITHIN);
        Self { host, ownership, runtime }
    }

    fn wait_for_name(&self, process: ProcKey) {
        let end = Instant::now() + WITHIN;
        while !self.ownership.attribution(process).is_some_and(|owner| is_named(&owner)) {
            assert!(Instant::now() < end, "{:?}", self.ownership.attribution(process));
            thread::yield_now();
        }
    }
}

fn is_named(owner: &ProcessAttribution) -> bool {
    let pod = owner.workload.pod.as_ref();
    pod.is_some_and(|pod| pod.name.is_some() && pod.container.is_some())
}

/// What the newest thread of the providers has used.
fn thread_nanos() -> f64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
    let names = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == THREAD)
    };
    let newest = tasks
        .filter(names)
        .max_by_key(|task| task.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()));
    let text = fs::read_to_string(newest.unwrap().join("schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

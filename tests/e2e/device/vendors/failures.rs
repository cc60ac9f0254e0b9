//! A vendor whose library or whose files are missing, hang, crash or answer nonsense takes nothing from the
//! others.

use super::{Host, VENDORS, WITHIN, workers};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Group, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A file that a device of each vendor is read by, below the host's files, and the metric that it has.
const FILES: [(&str, &str, &str); 5] = [
    ("amd", "sys/devices/pci0000:00/0000:05:00.0/gpu_busy_percent", "gpu.utilization"),
    (
        "tenstorrent",
        "sys/devices/pci0000:00/0000:40:00.0/tenstorrent/tenstorrent!0/tt_aiclk",
        "gpu.clock.speed",
    ),
    ("tpu", "sys/devices/pci0000:00/0000:80:00.0/current_link_width", "gpu.pcie.link.width"),
    ("intel", "sys/devices/pci0000:00/0000:c0:00.0/tile0/gt0/freq0/act_freq", "gpu.clock.speed"),
    (
        "neuron",
        "sys/devices/virtual/neuron_device/neuron0/neuron_core3/stats/memory_usage/device_mem/total",
        "gpu.memory.usage",
    ),
];

/// An agent with every vendor's devices, and a process on each.
struct Node {
    // Ended before what it reads.
    agent: Agent,
    _workers: Vec<(&'static str, Group, Worker)>,
    host: Host,
    points: PathBuf,
    _stage: Stage,
}

impl Node {
    fn start(mut stage: Stage, gaudi: &str) -> Self {
        let host = Host::new(&stage);
        let workers = workers(&mut stage, &host);
        let rest = VENDORS.iter().filter(|(vendor, _, _)| *vendor != "gaudi");
        let rest = rest.map(|(vendor, _, _)| format!("[{vendor}]\ndeadline = \"2s\"\n"));
        let more = format!(
            "[nvidia]\nenabled = false\n[gaudi]\nlibrary = \"{gaudi}\"\ndeadline = \"2s\"\n{}",
            rest.collect::<String>()
        );
        let points = stage.folder().join("points.jsonl");
        let file = Some(points.clone());
        let config = Config { more, file, ..host.config(&stage) };
        let agent = Agent::start(stage.folder(), &config, None).unwrap();
        Self { agent, _workers: workers, host, points, _stage: stage }
    }

    /// Waits until a vendor's devices are as wanted, and all others are well.
    fn wait(&self, what: &str, vendor: &str, is_so: fn(&[&str]) -> bool) -> Value {
        let seen = self.agent.wait_for(&format!("{vendor}: {what}"), WITHIN, |who| {
            self.host.play_all_but(vendor);
            let states = states(who);
            let are_so = VENDORS.iter().all(|(name, _, _)| {
                let own = states.get(*name).map_or(&[][..], Vec::as_slice);
                if *name == vendor { is_so(own) } else { are_well(own) }
            });
            are_so.then(|| who.clone())
        });
        seen.unwrap_or_else(|error| panic!("{error} {:#?}", self.agent.log()))
    }

    /// The points that have come since there were so many.
    fn points_after(&self, count: usize) -> Vec<Value> {
        let text = fs::read_to_string(&self.points).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().skip(count).map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The states of each vendor's devices.
fn states(who: &Value) -> BTreeMap<&str, Vec<&str>> {
    let mut states: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for device in who["devices"].as_array().into_iter().flatten() {
        let text = |key: &str| device[key].as_str().unwrap_or_default();
        states.entry(text("vendor")).or_default().push(text("state"));
    }
    states
}

fn reason(who: &Value, source: &str) -> String {
    let mut sources = who["sources"].as_array().into_iter().flatten();
    let source = sources.find(|known| known["name"] == source).unwrap();
    format!("{} {}", source["state"].as_str().unwrap(), source["reason"].as_str().unwrap_or(""))
}

fn are_well(states: &[&str]) -> bool {
    states.len() >= 2 && states.iter().all(|state| *state == "ok")
}

#[test]
fn a_gaudi_library_that_crashes_hangs_or_answers_nonsense_costs_only_gaudi() {
    let stage = or_skip!(Stage::new());
    let library = stage.folder().join("host/libhlml.so");
    let node = Node::start(stage, &library.display().to_string());
    node.wait("to be well", "gaudi", are_well);
    let well = node.host.answers();
    let with = |name: &str, words: &str| {
        let rest = well.lines().filter(|line| line.split(' ').next() != Some(name));
        format!("{name} {words}\n{}\n", rest.collect::<Vec<_>>().join("\n"))
    };
    node.host.answer(&with("hlml_device_get_power_usage", "crash"));
    let who = node.wait("to be down", "gaudi", |states| !states.contains(&"ok"));
    let why = reason(&who, "gaudi");
    assert!(why.contains("SIGSEGV"), "{why}");
    node.host.answer(&well);
    node.wait("to be back", "gaudi", are_well);
    node.host.answer(&with("hlml_device_get_power_usage", "hang"));
    node.wait("to hang", "gaudi", |states| states.contains(&"hung"));
    node.host.answer(&well);
    node.wait("to be back", "gaudi", are_well);
    // More than there is, all ones, and text.
    let used = "hlml_device_get_memory_info";
    let busy = "hlml_device_get_utilization_rates";
    let nonsense = format!(
        "{used} 1 2 9007199254740993\n{busy} 250 250\n\
         hlml_device_get_power_usage 4294967295\nhlml_device_get_temperature/0 4294967295\n"
    );
    let replaced = ["power_usage", "temperature/0", "memory_info", "utilization_rates"];
    let rest = well.lines().filter(|line| !replaced.iter().any(|name| line.contains(name)));
    let before = node.points_after(0).len();
    node.host.answer(&format!("{nonsense}{}\n", rest.collect::<Vec<_>>().join("\n")));
    let is_ended = |name: &str| {
        node.points_after(before).iter().any(|point| {
            let is_it = point["metric"] == name && point["ended"] == true;
            is_it && point["attributes"]["gpu.vendor"] == "gaudi"
        })
    };
    let names = ["gpu.power", "gpu.utilization", "gpu.memory.usage", "gpu.temperature"];
    let ended = until(WITHIN, || names.iter().all(|name| is_ended(name)).then_some(()));
    assert!(ended.is_some(), "{:?}", names.map(is_ended));
    node.wait("to be well but for those values", "gaudi", are_well);
}

#[test]
fn a_gaudi_library_that_is_missing_costs_only_gaudi() {
    let node = Node::start(or_skip!(Stage::new()), "/nonexistent/libhlml.so");
    let who = node.wait("to be missing", "gaudi", |states| states.is_empty());
    let why = reason(&who, "gaudi");
    assert!(why.contains("/nonexistent/libhlml.so"), "{why}");
}

/// Puts a pipe without a writer in the place of a file: opening it does not return.
fn make_hang(path: &Path) {
    fs::remove_file(path).unwrap();
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// Ends what waits for the pipe, and puts a file in its place.
fn release(path: &Path, content: &[u8]) {
    let writer = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::rename(&new, path).unwrap();
    drop(writer);
}

#[test]
fn a_vendors_file_that_hangs_or_holds_nonsense_costs_only_its_vendor() {
    let stage = or_skip!(Stage::new());
    let library = stage.folder().join("host/libhlml.so");
    let node = Node::start(stage, &library.display().to_string());
    for (vendor, file, metric) in FILES {
        let path = node.host.root.join(file);
        node.wait("to be well", vendor, are_well);
        make_hang(&path);
        node.wait("to hang", vendor, |states| states.contains(&"hung"));
        let before = node.points_after(0).len();
        release(&path, b"\xff\xfe 18446744073709551615 \xff\n");
        node.wait("to be back", vendor, are_well);
        let of_first = |point: &Value| {
            let own = &point["attributes"];
            let is_its = own["gpu.vendor"] == vendor && own["gpu.index"] == "0";
            is_its && point["metric"] == metric && point["value"].is_number()
        };
        let points = node.points_after(before);
        assert!(!points.iter().any(of_first), "{vendor}: {metric} of nonsense");
        node.host.play();
        let is_back = || node.points_after(before).iter().any(of_first).then_some(());
        assert!(until(WITHIN, is_back).is_some(), "{vendor}: no {metric} after the nonsense");
    }
}

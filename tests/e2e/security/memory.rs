//! All attacks on the agent's memory at once.

use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::attacker;
use gpuwho_tests::nccl::{Rank, is_probed_here, library};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use gpuwho_tests::worker::nodes::{open_node, open_to_all};
use rustix::fs::{CWD, FileType, Mode, chmod, mknodat};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Some readings of an agent that is attacked from all sides, on a machine under load.
const WITHIN: Duration = Duration::from_mins(3);
/// The agent with all of its children, of what its unit allows (256 MiB).
const MAX_KB: u64 = 160 << 10;
/// Readings after the last attack has begun.
const READINGS: usize = 20;
/// An environment as large as an exec takes, for the attackers that NCCL's status is asked of.
const FILLER: usize = 100 << 10;
/// The node in the folder that stands for a GPU's.
const NODE: &str = "gpu";

/// An agent in a memory cgroup of its own, and what it tells.
struct Host {
    stage: Stage,
    agent: Agent,
    /// Everybody may write to it.
    folder: PathBuf,
    library: PathBuf,
    reported: Arc<Mutex<MemoryReport>>,
    /// Where the memory of the agent and its children is counted, if it is here.
    group: Option<PathBuf>,
    _nvml: FakeNvml,
    _silent: TcpListener,
}

/// What was seen of the agent.
#[derive(Default)]
struct MemoryReport {
    /// Each point of [`EVIDENCE`], with its largest value.
    largest: BTreeMap<String, f64>,
    readings: usize,
    /// Of each of its processes, when all together were the largest.
    peaks: BTreeMap<u32, Peak>,
}

/// The most memory that a process has had, in kB.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Peak {
    all: u64,
    /// Pages of files: nearly all of the program, which the agent's processes share.
    of_files: u64,
}

/// Metrics that show that an attack was met.
const EVIDENCE: [&str; 5] = [
    "gpuwho.owner.refused",
    "gpuwho.dropped",
    "nccl.ras.queries",
    "nccl.inspector.files",
    "gpuwho.events",
];

impl Host {
    fn new(mut stage: Stage) -> Self {
        let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
        let folder = stage.folder().join("open");
        fs::create_dir(&folder).unwrap();
        for (path, mode) in [(stage.folder(), 0o755), (&folder, 0o777)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        open_to_all(&folder, NODE, 9).unwrap();
        let [kmsg, points] = ["kmsg", "points"].map(|name| fifo(stage.folder(), name));
        let report = listen(&points);
        // Takes connections, and never answers one.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        let own = stage.service("gpuwho").unwrap();
        let group = own.directories.into_iter().find(|at| peak_file(at).is_some());
        let join = group
            .as_ref()
            .map_or(String::new(), |at| format!("echo $$ > '{}/cgroup.procs' && ", at.display()));
        let script = format!("{join}exec \"$@\"");
        let config = Config {
            interval: Some("500ms".to_owned()),
            pod_logs: Some(stage.pod_logs()),
            nodes: Some(vec![folder.join(NODE).display().to_string()]),
            kmsg: Some(kmsg),
            file: Some(points),
            otlp: Some(Otlp { endpoint, protocol: None }),
            launcher: ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec(),
            more: "[nccl]\nras_interval = \"1s\"\n".to_owned(),
            ..Config::default()
        };
        let library = library(stage.folder()).unwrap();
        let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
        Self {
            stage,
            agent,
            folder,
            library,
            reported: report,
            group,
            _nvml: nvml,
            _silent: silent,
        }
    }

    fn node(&self) -> String {
        self.folder.join(NODE).display().to_string()
    }

    /// Starts an attack in a service of its own.
    fn attack(&mut self, name: &str, before: &[&str]) -> Attacker {
        let group = self.stage.service(name).unwrap();
        let groups = group.directories.iter().map(|path| path.to_str().unwrap());
        let arguments: Vec<_> = before.iter().copied().chain(groups).collect();
        Attacker::start(&mut attacker::command(name, &arguments).unwrap())
    }

    /// Starts a process that holds the device, has the library, and answers on this port.
    fn rank(&self, kind: &str, port: u16) -> Attacker {
        let mut command = attacker::command("ras", &[kind, &port.to_string()]).unwrap();
        let device = open_node(Path::new(&self.node())).unwrap();
        command.env("NCCL_RAS_ADDR", format!("localhost:{port}"));
        command.env("LD_PRELOAD", &self.library).stderr(Stdio::from(device));
        // As large an environment as an exec takes, behind what is looked for.
        command.envs((0..15).map(|number| (format!("Z{number}"), "x".repeat(FILLER))));
        Attacker::start(&mut command)
    }

    /// Waits until what the agent tells shows that an attack was met.
    fn wait(&self, metric: &str, attribute: &str) {
        let is_there = || {
            self.measure();
            let report = self.reported.lock().unwrap();
            let mut all = report.largest.iter();
            let is_it = |(point, value): (&String, &f64)| {
                point.starts_with(metric) && point.contains(attribute) && *value > 0.0
            };
            all.any(is_it).then_some(())
        };
        let found = until(WITHIN, is_there);
        let report =
            || format!("{:#?}\n{:#?}", self.reported.lock().unwrap().largest, self.agent.log());
        assert!(found.is_some(), "no {metric} of {attribute}: {}", report());
        self.print_peak(attribute);
    }

    /// Waits until a source gives such a reason.
    fn wait_for_source(&self, name: &str, reason: &str) {
        let look = |who: &Value| {
            self.measure();
            let mut sources = who["sources"].as_array()?.iter();
            let source = sources.find(|source| source["name"] == name)?;
            source["reason"].as_str()?.contains(reason).then_some(())
        };
        self.agent.wait_for(reason, WITHIN, look).unwrap();
        self.print_peak(reason);
    }

    /// The most is from now on what it has now (`proc_pid_clear_refs(5)`, `memory.rst`).
    fn forget_peak(&self) {
        for pid in peaks(self.agent.pid()).into_keys() {
            fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
        }
        if let Some(file) = self.group.as_deref().and_then(peak_file) {
            // Of cgroup v2 since Linux 6.12, for the writer's own descriptor only; then it counts
            // from the start.
            let _ = fs::write(file, "0");
        }
    }

    /// Looks at the memory that the agent and its children have had.
    fn measure(&self) {
        let now = peaks(self.agent.pid());
        let mut report = self.reported.lock().unwrap();
        if together_kb(&now) > together_kb(&report.peaks) {
            report.peaks = now;
        }
    }

    fn print_peak(&self, what: &str) {
        self.measure();
        let peaks = self.reported.lock().unwrap().peaks.clone();
        let (peak, charged) = (together_kb(&peaks), self.charged_kb());
        println!("{what}: {peak} kB, charged {charged:?} kB; {peaks:?}");
    }

    fn readings(&self) -> usize {
        self.measure();
        self.reported.lock().unwrap().readings
    }

    /// The most that was charged to the agent's group.
    fn charged_kb(&self) -> Option<u64> {
        let peak = fs::read_to_string(peak_file(self.group.as_ref()?)?).ok()?;
        Some(peak.trim().parse::<u64>().ok()? >> 10)
    }
}

/// A process that attacks; ended when dropped.
struct Attacker(Child);

impl Attacker {
    /// Starts it and waits until it has begun.
    fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(!said.is_empty(), "{command:?} has ended");
        Self(child)
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // Gone already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fifo(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    mknodat(CWD, &path, FileType::Fifo, Mode::empty(), 0).unwrap();
    chmod(&path, Mode::from_raw_mode(0o666)).unwrap();
    path
}

/// Reads what the agent writes, on a thread that ends with the test.
fn listen(points: &Path) -> Arc<Mutex<MemoryReport>> {
    // Open for both: the agent's own opening does not wait, nor does this one.
    let file = OpenOptions::new().read(true).write(true).open(points).unwrap();
    let report = Arc::<Mutex<MemoryReport>>::default();
    let theirs = Arc::clone(&report);
    thread::spawn(move || {
        for line in BufReader::new(file).lines().map_while(Result::ok) {
            if line.contains("\"gpuwho.series\"") {
                theirs.lock().unwrap().readings += 1;
            }
            if !EVIDENCE.iter().any(|metric| line.contains(metric)) {
                continue;
            }
            let Ok(point) = serde_json::from_str::<Value>(&line) else { continue };
            let (Some(metric), Some(value)) = (point["metric"].as_str(), point["value"].as_f64())
            else {
                continue;
            };
            let key = format!("{metric} {}", point["attributes"]);
            let mut report = theirs.lock().unwrap();
            let largest = report.largest.entry(key).or_default();
            *largest = largest.max(value);
        }
    });
    report
}

/// Where a group's peak is: of cgroup v1, or of v2 since Linux 5.19.
fn peak_file(group: &Path) -> Option<PathBuf> {
    let all = ["memory.max_usage_in_bytes", "memory.peak"].map(|name| group.join(name));
    all.into_iter().find(|path| path.exists())
}

/// A process and those that it started.
fn peaks(pid: u32) -> BTreeMap<u32, Peak> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).ok();
    let children: String = tasks.filter_map(of).collect();
    let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    let own = peak(pid).unwrap();
    let of = |pid| Some((pid, peak(pid)?)).filter(|(_, peak)| *peak != own);
    // A child with the same figures has not executed its program yet: its memory is its parent's.
    pids.filter_map(of).chain([(pid, own)]).collect()
}

/// Of a process that has not ended.
fn peak(pid: u32) -> Option<Peak> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kb = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    Some(Peak { all: kb("VmHWM:")?, of_files: kb("RssFile:")? })
}

/// What they have had together, with the pages that they share once.
fn together_kb(peaks: &BTreeMap<u32, Peak>) -> u64 {
    let own = peaks.values().map(|peak| peak.all.saturating_sub(peak.of_files)).sum::<u64>();
    own + peaks.values().map(|peak| peak.of_files).max().unwrap_or(0)
}

/// Free ports, in order.
fn ports<const N: usize>() -> [u16; N] {
    let all = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    all.map(|listener| listener.local_addr().unwrap().port())
}

#[test]
fn all_attacks_at_once_leave_the_agent_below_its_bound() {
    or_skip!(is_probed_here());
    let mut host = Host::new(or_skip!(Stage::new()));
    // For whom the agent loads its probes before.
    let _alice = Rank::holding(Path::new(&host.node()), &host.library, &[]).unwrap();
    host.agent.wait_for_log("counting collective calls", WITHIN).unwrap();
    host.forget_peak();
    host.print_peak("nothing");
    let (folder, node) = (host.folder.display().to_string(), host.node());

    let start = |name: &str, arguments: &[&str]| {
        Attacker::start(&mut attacker::command(name, arguments).unwrap())
    };

    let mut attackers = vec![
        start("deep-mappings", &[&folder, "/", &node]),
        start("sparse-libraries", &[&folder, "/", &node]),
    ];
    host.wait_for_source("nccl", "longer than 32 MiB");
    for (kind, port) in ["many", "absent", "empties", "huge"].into_iter().zip(ports::<4>()) {
        attackers.push(host.rank(kind, port));
    }
    host.wait("nccl.ras.queries", "too_long");
    attackers.push(host.attack("endless-files", &[&folder]));
    attackers.push(host.attack("endless-environment", &[&folder]));
    host.wait("nccl.inspector.files", "\"read\"");
    if OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok() {
        for attack in ["hung-file", "hung-environment"] {
            let mount = host.folder.join(attack);
            fs::create_dir(&mount).unwrap();
            attackers.push(host.attack(attack, &[mount.to_str().unwrap(), &node]));
        }
        host.wait("gpuwho.dropped", "tenant_hung");
    }
    attackers.extend([(); 3].map(|()| host.attack("all-series", &[&folder])));
    attackers.push(host.attack("all-files", &[&folder]));
    attackers.push(host.attack("many-processes", &[&folder]));
    host.wait("gpuwho.owner.refused", "inspector_files");
    let log = host.stage.folder().join("kmsg").display().to_string();
    attackers.push(start("kernel-log", &[&log]));
    host.wait("gpuwho.events", "gpu.xid");
    let socket = host.agent.socket().display().to_string();
    attackers.push(start("claims-silent", &[&socket, "1000"]));
    let before = host.readings();
    let more = until(WITHIN, || (host.readings() >= before + READINGS).then_some(()));
    assert!(more.is_some(), "{} of {READINGS} readings", host.readings() - before);
    host.print_peak("all of it");

    let peaks = host.reported.lock().unwrap().peaks.clone();
    assert!(together_kb(&peaks) < MAX_KB, "{peaks:?}");
    if let Some(charged) = host.charged_kb() {
        assert!(charged < MAX_KB, "{charged} kB charged to the agent's group");
    }
}

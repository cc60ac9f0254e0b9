//! All attacks on the agent's memory at once.

use super::usage::{Attacker, Peaks, fifo};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::attacker;
use gpuwho_tests::nccl::{Rank, is_probed_here, library};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::sys::hold_node;
use gpuwho_tests::until::until;
use gpuwho_tests::worker::nodes::open_to_all;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
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
    /// Ends before its cgroup and its folder go.
    agent: Agent,
    stage: Stage,
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
    peaks: Peaks,
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
            more: "[nccl]\nras = \"all\"\nras_interval = \"1s\"\n".to_owned(),
            ..Config::default()
        };
        let library = library(stage.folder()).unwrap();
        let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
        Self {
            agent,
            stage,
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
        command.env("NCCL_RAS_ADDR", format!("localhost:{port}"));
        command.env("LD_PRELOAD", &self.library);
        // As large an environment as an exec takes, behind what is looked for.
        command.envs((0..15).map(|number| (format!("Z{number}"), "x".repeat(FILLER))));
        Attacker::start(hold_node(&mut command, Path::new(&self.node())).unwrap())
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

    /// Waits until a source says that it has given a process's files up, for one of these reasons.
    fn wait_for_source(&self, name: &str, pid: u32, reasons: &[&str]) {
        let process = format!("process {pid}: ");
        let look = |who: &Value| {
            self.measure();
            let mut sources = who["sources"].as_array()?.iter();
            let source = sources.find(|source| source["name"] == name)?;
            let given = source["reason"].as_str()?.strip_prefix(&process)?;
            reasons.iter().any(|reason| given.contains(reason)).then(|| given.to_owned())
        };
        let given = self.agent.wait_for(&reasons.join(" or "), WITHIN, look).unwrap();
        self.print_peak(&given);
    }

    /// The most is from now on what it has now (`proc_pid_clear_refs(5)`, `memory.rst`).
    fn forget_peak(&self) {
        self.reported.lock().unwrap().peaks.forget(self.agent.pid());
        if let Some(file) = self.group.as_deref().and_then(peak_file) {
            // Of cgroup v2 since Linux 6.12, for the writer's own descriptor only; then it counts
            // from the start.
            let _ = fs::write(file, "0");
        }
    }

    /// Looks at the memory that the agent and its children have had.
    fn measure(&self) -> u64 {
        self.reported.lock().unwrap().peaks.measure(self.agent.pid())
    }

    fn print_peak(&self, what: &str) {
        let (peak, charged) = (self.measure(), self.charged_kb());
        println!("{what}: {peak} kB, charged {charged:?} kB");
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

    let deep = start("deep-mappings", &[&folder, "/", &node]);
    let deep_pid = deep.pid();
    let mut attackers = vec![deep, start("sparse-libraries", &[&folder, "/", &node])];
    // On a machine under load the time that a tenant's slow files may take is over before.
    host.wait_for_source("nccl", deep_pid, &["longer than 32 MiB", "answer too slowly"]);
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

    let peak = host.measure();
    assert!(peak < MAX_KB, "{peak} kB: {:?}", host.reported.lock().unwrap().peaks);
    if let Some(charged) = host.charged_kb() {
        assert!(charged < MAX_KB, "{charged} kB charged to the agent's group");
    }
}

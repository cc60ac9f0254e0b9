//! NCCL's Inspector in a job: what it writes while the job runs arrives at the Collector with the
//! pod's name and the communicator that the kernel's probes know.

use crate::fixture::TRAINER;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, ReceivedValue, of};
use gpuwho_tests::or_skip;
use gpuwho_tests::program;
use gpuwho_tests::stage::{Group, Stage};
use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A few readings, and for the probes a look at the process's libraries, on a machine under load.
const WITHIN: Duration = Duration::from_secs(40);

/// What finds a point among those received.
type Look<'a> = &'a dyn Fn(&[ReceivedPoint]) -> Option<ReceivedPoint>;

/// Stands for a GPU's node: every machine has it, and hardly anything opens it.
const NODE: &str = "/dev/full";

/// A rank of a job: holds a device, has the library, and the plugin's file open as the plugin has.
struct Rank {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Rank {
    fn start(group: &Group, folder: &Path) -> Self {
        let rank = program::rank().unwrap();
        let join: Vec<String> = group
            .directories
            .iter()
            .map(|path| format!("echo $$ > '{}/cgroup.procs'", path.display()))
            .collect();
        let script = format!(
            "set -e; {}; exec 3>>\"$2/node-pid$$.log\" 4<{NODE}; exec \"$1\"",
            join.join("; ")
        );
        let mut child = Command::new("sh")
            .args(["-c", &script, "sh"])
            .args([rank.as_path(), folder])
            .env("NCCL_INSPECTOR_ENABLE", "1")
            .env("NCCL_INSPECTOR_DUMP_DIR", folder)
            .env("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "500")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, orders, answers }
    }

    fn order(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert!(!answer.is_empty() && !answer.starts_with("refused"), "{order}: {answer}");
        answer.trim_end().to_owned()
    }

    fn records(&self, folder: &Path) -> PathBuf {
        folder.join(format!("node-pid{}.log", self.child.id()))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The recorded lines, as this process would have written them of its communicator.
fn lines(pid: u32, id: &str) -> String {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/nccl-inspector/inspector-2.30.7-v4.0-plain.jsonl"
    );
    let cut = id.get(..16).unwrap_or(id);
    let text = fs::read_to_string(file).unwrap();
    text.replace("11229", &pid.to_string()).replace("0x1db14a8a713c2f", cut)
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn watch(stage: &Stage, collector: &Collector) -> Agent {
    let config = Config {
        interval: Some("500ms".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        nodes: Some(vec![NODE.to_owned()]),
        otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
        more: "[nvidia]\nenabled = false\n".to_owned(),
        ..Config::default()
    };
    Agent::start(stage.folder(), &config, None).unwrap()
}

/// Why the probes are not there, if they are not.
fn without_probes(agent: &Agent) -> Option<String> {
    let who = agent.who().unwrap();
    let sources = who["sources"].as_array().unwrap();
    let nccl = sources.iter().find(|source| source["name"] == "nccl")?;
    let is_refused = nccl["state"] == "degraded";
    is_refused.then(|| nccl["reason"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn what_a_jobs_inspector_writes_arrives_with_its_pod_and_communicator() {
    let mut stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let agent = watch(&stage, &collector);
    let pod = stage.pod(&TRAINER).unwrap();
    let folder = stage.folder().join("inspector");
    fs::create_dir(&folder).unwrap();
    let mut rank = Rank::start(&pod, &folder);
    let library = program::fake_nccl().unwrap();
    assert_eq!(rank.order(&format!("load {}", library.display())), "ok");
    let pid = rank.child.id().to_string();
    let wait = |look: Look<'_>| {
        let point = collector.wait_for(WITHIN, look).unwrap();
        point.unwrap_or_else(|| panic!("it did not come; agent: {:#?}", agent.log()))
    };
    wait(&|points| {
        let read = of(points, "nccl.inspector.files", &[("nccl.inspector.file.state", "read")]);
        read.into_iter().find(|point| point.value == ReceivedValue::Int(1)).cloned()
    });
    let id = match without_probes(&agent) {
        Some(why) => {
            println!("skipped: needs the probes for the communicator's hash: {why}");
            None
        }
        None => Some(hash_of(&mut rank, &pid, &wait)),
    };
    append(
        &rank.records(&folder),
        &lines(rank.child.id(), id.as_deref().unwrap_or("0x1db14a8a713c2f")),
    );
    let mut attrs = vec![
        ("process.pid", pid.as_str()),
        ("k8s.pod.name", "trainer-0"),
        ("k8s.namespace.name", "research"),
        ("nccl.rank", "3"),
        ("nccl.nranks", "8"),
        ("nccl.operation", "all_reduce"),
        ("nccl.size_class", "lt_16MiB"),
    ];
    match &id {
        Some(id) => attrs.push(("nccl.communicator.id", id)),
        None => attrs.push(("nccl.communicator.id_prefix", "0x1db14a8a713c2f")),
    }
    // Two all-reduces of 2 and 10 MiB are in this class, and one of 18 MiB in the next.
    let last = |metric: &'static str| {
        let attrs = attrs.clone();
        wait(&move |points| of(points, metric, &attrs).last().map(|point| (*point).clone()))
    };
    let bytes = 2_097_152 + 10_485_760;
    assert_eq!(last("nccl.inspector.bytes").value, ReceivedValue::Int(bytes));
    assert_eq!(last("nccl.inspector.bus_traffic").value, ReceivedValue::Int(bytes * 14 / 8));
    let distribution = |point: ReceivedPoint, parts: f64| match point.value {
        ReceivedValue::Histogram { counts, sum, .. } => {
            (counts.iter().sum::<u64>(), (sum * parts).round(), point.unit)
        }
        other => panic!("no distribution: {other:?}"),
    };
    let bus = distribution(last("nccl.inspector.bus_bandwidth"), 1e-3);
    assert_eq!(bus, (2, 28_976_771.0, "By/s".to_owned()));
    let time = distribution(last("nccl.inspector.duration"), 1e6);
    assert_eq!(time, (2, 1_404.0, "s".to_owned()));
}

/// Makes a communicator of which this process is rank 3 of 8; gives its hash as the probes tell it.
fn hash_of(rank: &mut Rank, pid: &str, wait: &dyn Fn(Look<'_>) -> ReceivedPoint) -> String {
    wait(&|points| {
        let libraries = of(points, "nccl.probe.level.status", &[("nccl.probe.level", "full")]);
        libraries.into_iter().rfind(|point| point.value == ReceivedValue::Int(1)).cloned()
    });
    let id = rank.order("id");
    rank.order(&format!("init tp 8 3 {id}"));
    rank.order("call 1 ncclAllReduce tp 524288 7");
    let info = wait(&|points| {
        let mine =
            of(points, "nccl.communicator.info", &[("process.pid", pid), ("nccl.rank", "3")]);
        mine.last().map(|point| (*point).clone())
    });
    info.attrs.get("nccl.communicator.id").expect("a hash").clone()
}

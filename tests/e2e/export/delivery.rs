//! Delivery under what goes wrong: every number arrives once, or is counted. The receiver answers badly,
//! the agent is killed, the disk is full.

mod clock;
mod receiver;
mod reload;
mod secrets;

use gpuwho_export::spool::{Found, Totals};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::kmsg::Kmsg;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::until::until;
use receiver::{Answer, Receiver};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(40);

/// How often the agent is killed; `SOAK_KILLS` asks for more.
const KILLS: usize = 4;

fn kill(agent: &mut Agent, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    agent.wait(WITHIN).expect("the agent ends");
}

fn spool(folder: &Path) -> String {
    format!(
        "[spool]\nfolder = \"{}\"\nmetrics = true\ndrain_bytes = 100000000\n",
        folder.join("spool").display()
    )
}

fn found(folder: &Path, sink: &str) -> Found {
    Found::read(&folder.join("spool").join(sink)).unwrap()
}

fn lost(totals: Totals) -> u64 {
    totals.full + totals.expired + totals.damaged
}

/// Every third answer is bad in another way.
fn flapping(n: usize) -> Answer {
    match n % 21 {
        2 => Answer::Status(503),
        5 => Answer::CutShort,
        8 => Answer::Status(429),
        11 => Answer::Status(400),
        14 => Answer::Late(Duration::from_millis(300)),
        17 => Answer::Status(413),
        20 => Answer::Closed,
        _ => Answer::Status(200),
    }
}

/// Bytes that a pipe takes before its writer waits (`pipe(7)`).
const PIPE: u64 = 64 << 10;

/// A line of the kernel's log about the device.
fn xid(round: usize) -> String {
    format!("NVRM: Xid (PCI:0000:3b:00): 31, pid=1, round {round}")
}

#[test]
fn kills_and_a_flapping_receiver_lose_nothing_and_repeat_at_most_one_request_each() {
    let folder = TempDir::new().unwrap();
    let nvml = FakeNvml::install(folder.path(), "a10x1").unwrap();
    let mut kmsg = Kmsg::new(folder.path()).unwrap();
    let [otlp, webhook] = [Receiver::start(flapping), Receiver::start(flapping)];
    let more = format!(
        "{}[webhook]\nurl = \"{}\"\nmetrics = true\n",
        spool(folder.path()),
        webhook.url("/hook")
    );
    let config = Config {
        interval: Some("200ms".to_owned()),
        kmsg: Some(kmsg.path()),
        otlp: Some(Otlp { endpoint: otlp.url(""), protocol: Some("http/json") }),
        more: more
            + "[otlp.also.uncompressed]\nendpoint = \"http://127.0.0.1:9\"\nprotocol = \"http/json\"\nfilter = { metrics = [] }\n",
        ..Config::default()
    };
    let kills = std::env::var("SOAK_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS);
    for round in 1..=kills {
        let mut agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
        kmsg.write_line(&xid(round)).unwrap();
        let wanted = [&otlp, &webhook].map(|receiver| receiver.count() + 6);
        let came = || (otlp.count() >= wanted[0] && webhook.count() >= wanted[1]).then_some(());
        until(WITHIN, came).expect("requests come");
        kill(&mut agent, Signal::KILL);
    }
    // From now on every answer is good; the last agent sends all and ends as it is asked to.
    for receiver in [&otlp, &webhook] {
        receiver.answer_well();
    }
    let mut agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    kmsg.write_line(&xid(0)).unwrap();
    let events = || (found(folder.path(), "otlp-logs").made > 0).then_some(());
    until(WITHIN, events).expect("an event comes");
    let small = || {
        // A file may be deleted while it is looked for.
        let of = |sink| Found::read(&folder.path().join("spool").join(sink)).ok();
        let waits = ["otlp", "webhook"].map(|sink| of(sink).map(|found| found.requests));
        waits.iter().all(|requests| requests.is_some_and(|number| number <= 1)).then_some(())
    };
    until(WITHIN, small).expect("the backlog is sent");
    kill(&mut agent, Signal::TERM);
    for (receiver, sinks) in [(&otlp, &["otlp", "otlp-logs"][..]), (&webhook, &["webhook"])] {
        let lost = assert_nothing_is_missing(folder.path(), (receiver, kills), sinks);
        assert_eq!(lost, 0, "{sinks:?}");
        assert!(receiver.outcome().is_in_order, "{sinks:?}");
    }
}

/// What was made has arrived, or is counted as refused or as lost, for these sinks of an agent that was
/// killed so often and has ended. Gives what was lost.
fn assert_nothing_is_missing(
    folder: &Path,
    (receiver, kills): (&Receiver, usize),
    sinks: &[&str],
) -> u64 {
    let (outcome, mut all) = (receiver.outcome(), Totals::default());
    for sink in sinks {
        let found = found(folder, sink);
        assert!(found.made > 0, "{sink}");
        let Totals { accepted, refused, .. } = found.totals;
        let known = accepted + refused + lost(found.totals) + found.points;
        assert_eq!(known, found.made, "{sink}: {found:?}");
        assert_eq!(found.points, 0, "{sink}: all is sent when the agent ends");
        all.accepted += accepted;
        all.refused += refused;
        all.full += lost(found.totals);
    }
    assert_eq!((outcome.accepted, outcome.refused), (all.accepted, all.refused), "{sinks:?}");
    // Closed connections may repeat one as well: the receiver had it, and the agent cannot know.
    let may_repeat = kills * sinks.len() + outcome.cut_short;
    assert!(outcome.repeated <= may_repeat, "{} of {may_repeat}", outcome.repeated);
    all.full
}

#[test]
fn a_full_disk_is_a_state_and_what_fits_in_memory_arrives_later() {
    let folder = TempDir::new().unwrap();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root to mount a small file system");
        return;
    }
    let disk = folder.path().join("spool");
    fs::create_dir(&disk).unwrap();
    let receiver = Receiver::start(|_| Answer::Status(503));
    let script = format!("mount -t tmpfs -o size=64k none {} && exec \"$@\"", disk.display());
    let launcher = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"];
    let config = Config {
        interval: Some("200ms".to_owned()),
        otlp: Some(Otlp { endpoint: receiver.url(""), protocol: Some("http/json") }),
        file: Some(folder.path().join("points.jsonl")),
        launcher: launcher.map(str::to_owned).to_vec(),
        more: spool(folder.path()),
        ..Config::default()
    };
    let nvml = FakeNvml::install(folder.path(), "a10x1").unwrap();
    let mut agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    let degraded = |who: &Value| {
        let mut sources = who["sources"].as_array()?.iter();
        let sink = sources.find(|source| source["name"] == "sink:otlp")?;
        (sink["state"] == "degraded").then(|| sink["reason"].as_str().map(str::to_owned))?
    };
    let reason = agent.wait_for("the state of the sink", WITHIN, degraded).unwrap();
    assert!(reason.contains("disk of the spool is full"), "{reason}");
    receiver.answer_well();
    let ready = |who: &Value| {
        let mut sources = who["sources"].as_array()?.iter();
        let sink = sources.find(|source| source["name"] == "sink:otlp")?;
        (sink["state"] == "ready").then_some(())
    };
    agent.wait_for("the sink works again", WITHIN, ready).unwrap();
    let points = folder.path().join("points.jsonl");
    let ok = ("gpuwho.export.points", "ok");
    until(WITHIN, || (counted(&points, ok) > 0).then_some(())).expect("it counts what it sent");
    kill(&mut agent, Signal::TERM);
    let outcome = receiver.outcome();
    assert!(outcome.is_in_order && outcome.repeated == 0, "{outcome:?}");
    // What the agent counted at its last tick but one is at most what came.
    let ok = counted(&points, ok);
    assert!(ok <= outcome.accepted, "{ok} {outcome:?}");
    let failed = counted(&points, ("gpuwho.export.points", "failed"));
    assert_eq!(failed, 0, "memory was large enough");
    assert!(counted(&points, ("gpuwho.export.taken", "")) >= ok);
}

/// The last value of a counter of the sink, with an outcome if it has one.
fn counted(points: &Path, (metric, outcome): (&str, &str)) -> u64 {
    let text = fs::read_to_string(points).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut values = lines.filter_map(|line| {
        let attributes = &line["attributes"];
        let is_it = line["metric"] == metric
            && attributes["gpuwho.source"] == "sink:otlp"
            && attributes["gpuwho.export.outcome"].as_str().unwrap_or_default() == outcome;
        is_it.then(|| line["value"].as_u64()).flatten()
    });
    values.next_back().unwrap_or(0)
}

#[test]
fn two_receivers_get_what_their_filters_let_through_though_a_third_is_dead() {
    let folder = TempDir::new().unwrap();
    let nvml = FakeNvml::install(folder.path(), "a10x1").unwrap();
    let [all, some] = [(); 2].map(|()| Receiver::start(|_| Answer::Status(200)));
    let dead = Receiver::start(|_| Answer::Late(Duration::from_mins(10)));
    let more = format!(
        "[otlp.also.power]\nendpoint = \"{}\"\nprotocol = \"http/json\"\ncompression = \"none\"\n\
         filter = {{ metrics = [\"gpu.power\"], events = [] }}\n\
         [otlp.also.dead]\nendpoint = \"{}\"\n",
        some.url(""),
        dead.url("")
    );
    let config = Config {
        interval: Some("200ms".to_owned()),
        otlp: Some(Otlp { endpoint: all.url(""), protocol: Some("http/json") }),
        more,
        ..Config::default()
    };
    let _agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    let came = || (all.count() >= 8 && some.count() >= 8 && dead.count() >= 1).then_some(());
    until(WITHIN, came).expect("both receive while the third does not answer");
    let names = some.metrics();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["gpu.power"]);
    let names = all.metrics();
    assert!(names.contains("gpu.power") && names.contains("gpu.energy"), "{names:?}");
}

#[test]
fn a_pipe_that_nobody_reads_keeps_no_other_receiver_waiting_nor_the_agents_end() {
    let folder = TempDir::new().unwrap();
    let nvml = FakeNvml::install(folder.path(), "a10x1").unwrap();
    let receiver = Receiver::start(|_| Answer::Status(200));
    let path = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    // Open for both: the agent's opening does not wait, and its writes do as soon as the pipe is full.
    let unread = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let config = Config {
        interval: Some("200ms".to_owned()),
        file: Some(path),
        otlp: Some(Otlp { endpoint: receiver.url(""), protocol: Some("http/json") }),
        ..Config::default()
    };
    let mut agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    let is_full = || (rustix::io::ioctl_fionread(&unread).unwrap() >= PIPE).then_some(());
    until(WITHIN, is_full).expect("the agent writes until the pipe is full");
    let before = receiver.count();
    until(WITHIN, || (receiver.count() >= before + 8).then_some(()))
        .expect("the other one receives");
    kill(&mut agent, Signal::TERM);
}

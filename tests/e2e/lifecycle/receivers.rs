//! Receivers that are away, wrong or refuse, and the agent's own end.

use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, of};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::until::until;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(40);

/// Resident memory an agent may reach while its receiver is away: its 8 MiB queue and its own.
const MAX_MEMORY_KB: u64 = 64 * 1024;

fn config(endpoint: String) -> Config {
    Config {
        interval: Some("200ms".to_owned()),
        otlp: Some(Otlp { endpoint, protocol: None }),
        ..Config::default()
    }
}

fn start(folder: &Path, endpoint: String) -> Agent {
    let nvml = FakeNvml::install(folder, "a10x1").unwrap();
    Agent::start(folder, &config(endpoint), Some(&nvml)).unwrap()
}

fn times(points: &[ReceivedPoint]) -> Vec<u64> {
    of(points, "gpu.energy", &[]).iter().map(|point| point.time).collect()
}

fn resident_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn what_was_read_while_the_collector_was_away_arrives_with_its_own_time() {
    let folder = TempDir::new().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let agent = start(folder.path(), collector.http_endpoint());
    let some = |points: &[ReceivedPoint]| (times(points).len() >= 3).then(|| times(points));
    let before = collector.wait_for(WITHIN, some).unwrap().expect("the first points").len();
    let stopped = collector.stop();
    agent.wait_for_log("OTLP", WITHIN).unwrap();
    let memory = resident_kb(agent.pid());
    assert!(memory < MAX_MEMORY_KB, "{memory} kB");
    let collector = Collector::again(&stopped).unwrap();
    let more =
        |points: &[ReceivedPoint]| (times(points).len() >= before + 15).then(|| times(points));
    let arrived = collector.wait_for(WITHIN, more).unwrap().expect("the points meanwhile");
    assert!(arrived.is_sorted_by(|a, b| a < b), "in order and each once: {arrived:?}");
    // A gap of several ticks would be what was lost while it was away.
    let widest = arrived.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(widest < 2_000_000_000, "{widest} ns without a point");
}

/// Answers every request with one status, as a server that is no OTLP receiver does.
fn answering(status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 8192];
            // The answer does not depend on what was asked, and a broken client asks again.
            let _ = stream.read(&mut request);
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    format!("http://{address}")
}

/// The agent's warnings about its receiver after it has failed ten times.
fn warnings(endpoint: String) -> Vec<String> {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("points.jsonl");
    let nvml = FakeNvml::install(folder.path(), "a10x1").unwrap();
    let config = Config { file: Some(file.clone()), ..config(endpoint) };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    let ticks = || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.lines().filter(|line| line.contains("\"gpu.power\"")).count()
    };
    let first = agent.wait_for_log("OTLP", WITHIN).unwrap();
    until(WITHIN, || (ticks() > 10).then_some(())).expect("ten ticks");
    let more = agent.log().into_iter().filter(|line| line.contains("OTLP"));
    std::iter::once(first).chain(more).collect()
}

#[test]
fn a_wrong_endpoint_is_said_once_and_clearly() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = warnings(format!("http://{closed}"));
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].contains("refused"), "{said:#?}");
}

#[test]
fn a_server_that_is_no_receiver_is_said_once_and_clearly() {
    let said = warnings(answering("404 Not Found"));
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].contains("404"), "{said:#?}");
}

#[test]
fn a_refused_header_is_said_once_and_clearly() {
    let said = warnings(answering("401 Unauthorized"));
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].contains("401") && said[0].contains("header"), "{said:#?}");
}

#[test]
fn tls_to_a_plain_port_is_said_once_and_clearly() {
    let said = warnings(answering("200 OK").replace("http:", "https:"));
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].contains("TLS"), "{said:#?}");
}

#[test]
fn told_to_end_it_ends_its_series_its_child_and_its_socket() {
    let folder = TempDir::new().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let mut agent = start(folder.path(), collector.http_endpoint());
    let some = |points: &[ReceivedPoint]| (!times(points).is_empty()).then_some(());
    collector.wait_for(WITHIN, some).unwrap().expect("the first points");
    let reader = until(WITHIN, || agent.reader()).expect("the reader");
    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(agent.wait(WITHIN).unwrap().code(), Some(0));
    assert!(!agent.socket().exists());
    assert!(!Path::new(&format!("/proc/{reader}/maps")).exists() || is_zombie(reader));
    let ended = |points: &[ReceivedPoint]| {
        let last = of(points, "gpu.power", &[]).last().copied()?.ended();
        last.then_some(())
    };
    collector.wait_for(WITHIN, ended).unwrap().expect("the end of the series");
}

fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

#[test]
fn a_second_agent_is_told_of_the_first() {
    let folder = TempDir::new().unwrap();
    let first = start(folder.path(), answering("200 OK"));
    let config = folder.path().join("gpuwho.toml");
    let mut command = std::process::Command::new(gpuwho_tests::program::gpuwho().unwrap());
    let second = command.args(["agent", "--config"]).arg(config).output().unwrap();
    let text = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{text}");
    assert!(text.contains("another gpuwho agent is running"), "{text}");
    assert!(first.who().is_ok(), "the first goes on");
}

#[test]
fn release_closes_every_handle_within_a_second_and_resume_takes_them_again() {
    let folder = TempDir::new().unwrap();
    let agent = start(folder.path(), answering("200 OK"));
    let reader = until(WITHIN, || agent.reader()).expect("the reader");
    agent
        .wait_for("a reading", WITHIN, |who| (who["devices"][0]["state"] == "ok").then_some(()))
        .unwrap();
    let ask = |words: &[&str]| {
        let mut command = std::process::Command::new(gpuwho_tests::program::gpuwho().unwrap());
        let output = command.args(words).arg("--socket").arg(agent.socket()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    ask(&["release", "--for", "10m"]);
    // The command has returned: nothing holds the library any more.
    assert!(!Path::new(&format!("/proc/{reader}/maps")).exists() || is_zombie(reader));
    agent
        .wait_for("the state", WITHIN, |who| {
            (who["devices"][0]["state"] == "released").then_some(())
        })
        .unwrap();
    ask(&["resume"]);
    agent
        .wait_for("the device", WITHIN, |who| (who["devices"][0]["state"] == "ok").then_some(()))
        .unwrap();
}

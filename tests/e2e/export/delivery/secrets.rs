//! No secret appears in anything that a run produces.

use super::receiver::{Answer, Receiver};
use super::{WITHIN, spool};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::kmsg::Kmsg;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::program;
use gpuwho_tests::until::until;
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// One for each way in which a secret gets to the agent.
const SECRETS: [&str; 7] = [
    "sEcrEt-header-7c1e",
    "sEcrEt-env-88fa",
    "sEcrEt-token-b0b1",
    "sEcrEt-file-c4d4",
    "sEcrEt-webhook-key-e5e6",
    "sEcrEt-proxy-f7f8",
    "sEcrEt-query-a9a0",
];

/// The secrets in a text.
fn secrets_in(bytes: &[u8]) -> Vec<&'static str> {
    let text = String::from_utf8_lossy(bytes);
    SECRETS.into_iter().filter(|secret| text.contains(secret)).collect()
}

/// Every file and every name below a folder.
fn search(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let mut here = secrets_in(path.as_os_str().as_encoded_bytes());
        if entry.file_type().unwrap().is_dir() {
            search(&path, found);
        } else if entry.file_type().unwrap().is_file() {
            here.extend(secrets_in(&fs::read(&path).unwrap()));
        }
        found.extend(here.iter().map(|secret| format!("{secret} in {}", path.display())));
    }
}

/// Its environment holds what it was given; its title does not, and its children neither.
fn in_processes(agent: &Agent) -> Vec<String> {
    let mut found = Vec::new();
    let processes = agent.children().into_iter().map(|(_, pid)| pid).chain([agent.pid()]);
    for pid in processes {
        for name in ["cmdline", "comm"] {
            let text = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            found.extend(
                secrets_in(&text).iter().map(|secret| format!("{secret} in {pid}'s {name}")),
            );
        }
    }
    found
}

/// What commands print about the agent and its configuration.
fn in_answers(agent: &Agent, file: &Path, env: &str) -> Vec<String> {
    let (file, socket) = (file.to_str().unwrap(), agent.socket());
    let socket = socket.to_str().unwrap();
    let commands: [&[&str]; 6] = [
        &["doctor", "--all", "-v", "--config", file],
        &["doctor", "--json", "--config", file],
        &["config", "check", file],
        &["agent", "--help"],
        &["--json", "--socket", socket],
        &["events", "--socket", socket],
    ];
    let mut found = Vec::new();
    for arguments in commands {
        let mut command = Command::new(program::gpuwho().unwrap());
        command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("x-env={env}"));
        let output = command.args(arguments).output().unwrap();
        assert!(!output.stdout.is_empty(), "{arguments:?}: {output:?}");
        for text in [&output.stdout, &output.stderr] {
            found
                .extend(secrets_in(text).iter().map(|secret| format!("{secret} in {arguments:?}")));
        }
    }
    found
}

#[test]
fn no_secret_is_in_a_log_a_page_a_process_s_title_a_metric_or_a_file() {
    // What holds the secrets, and what the run makes.
    let (given, made) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let [header, env, token, file, key, proxy, query] = SECRETS;
    let at = |name: &str, text: &str| {
        let path = given.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let refusing = Receiver::start(|n| match n % 3 {
        0 => Answer::Status(401),
        1 => Answer::Status(503),
        _ => Answer::Closed,
    });
    let more = format!(
        "{}[otlp.also.one]\nendpoint = \"{}?key={query}\"\nheaders = {{ x-key = \"{header}\" }}\n\
         headers_file = \"{}\"\ntoken_file = \"{}\"\n\
         [otlp.also.two]\nendpoint = \"http://192.0.2.1:4318\"\n\
         proxy = \"http://user:{proxy}@{}\"\n\
         [webhook]\nurl = \"{}?key={query}\"\nsecret_file = \"{}\"\n",
        spool(made.path()),
        refusing.url("/base"),
        at("headers", &format!("x-more: {file}\n")),
        at("token", token),
        refusing.url("").trim_start_matches("http://"),
        refusing.url("/hook"),
        at("key", key),
    );
    let mut kmsg = Kmsg::new(made.path()).unwrap();
    let config = Config {
        interval: Some("200ms".to_owned()),
        kmsg: Some(kmsg.path()),
        otlp: Some(Otlp { endpoint: refusing.url(""), protocol: None }),
        file: Some(made.path().join("points.jsonl")),
        log_file: Some(made.path().join("log")),
        launcher: [
            "env",
            &format!("OTEL_EXPORTER_OTLP_HEADERS=x-env={env}"),
            "RUST_LOG=trace",
            "GPUWHO_AGENT_LOG=trace",
        ]
        .map(str::to_owned)
        .to_vec(),
        more,
        ..Config::default()
    };
    let nvml = FakeNvml::install(made.path(), "a10x1").unwrap();
    let agent = Agent::start(made.path(), &config, Some(&nvml)).unwrap();
    kmsg.write_line("NVRM: Xid (PCI:0000:01:00): 31, pid=1").unwrap();
    until(WITHIN, || (refusing.count() > 20).then_some(())).expect("requests come");
    let file = made.path().join("gpuwho.toml");
    let mut found = in_processes(&agent);
    found.extend(in_answers(&agent, &file, env));
    drop(agent);
    // The configuration is what the operator wrote.
    fs::remove_file(&file).unwrap();
    search(made.path(), &mut found);
    assert_eq!(found, Vec::<String>::new());
    let log = fs::read_to_string(made.path().join("log")).unwrap();
    assert!(
        log.contains("401") && log.contains("webhook"),
        "the run has failed as it should: {log}"
    );
}

//! A tenant who has taken the agent's own port, or that of its receiver while that restarts.

use super::usage::Attacker;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker::{self, NOBODY};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::program;
use gpuwho_tests::prometheus::{free_address, get};
use gpuwho_tests::until::until;
use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Longer than the 30 s between two tries, on a machine under load.
const WITHIN: Duration = Duration::from_mins(2);
/// Readings while somebody else has the receiver's port.
const READINGS: usize = 10;
const TOKEN: &str = "tok-5ecret-of-the-operator";

fn squat(address: &str) -> Attacker {
    Attacker::start(&mut attacker::command("squat", &[address, TOKEN]).unwrap())
}

fn start(folder: &Path, more: String) -> Agent {
    let nvml = FakeNvml::install(folder, "a10x1").unwrap();
    let file = Some(folder.join("points.jsonl"));
    let config = Config { interval: Some("200ms".to_owned()), file, more, ..Config::default() };
    Agent::start(folder, &config, Some(&nvml)).unwrap()
}

/// Waits until a source has a state, with these words as its reason.
fn wait_for_source(agent: &Agent, name: &str, state: &str, words: &str) {
    let found = agent.wait_for(name, WITHIN, |who| {
        let mut sources = who["sources"].as_array()?.iter();
        let source = sources.find(|source| source["name"] == name)?;
        let has_words = source["reason"].as_str()?.contains(words);
        (source["state"] == state && has_words).then_some(())
    });
    found.unwrap();
}

/// Waits for so many more readings.
fn wait_for_readings(folder: &Path, count: usize) {
    let readings = || {
        let text = fs::read_to_string(folder.join("points.jsonl")).unwrap_or_default();
        text.lines().filter(|line| line.contains("\"gpu.energy\"")).count()
    };
    let before = readings();
    until(WITHIN, || (readings() >= before + count).then_some(())).expect("readings");
}

/// A receiver of root's; everything that it is sent.
fn receive(address: &str) -> Arc<Mutex<String>> {
    let listener = until(WITHIN, || TcpListener::bind(address).ok()).expect("a free port");
    let received = Arc::<Mutex<String>>::default();
    let theirs = Arc::clone(&received);
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let theirs = Arc::clone(&theirs);
            thread::spawn(move || {
                let mut bytes = vec![0; 1 << 20];
                let mut request = Vec::new();
                while let Ok(read @ 1..) = stream.read(&mut bytes) {
                    request.extend_from_slice(&bytes[..read]);
                    let Some(whole) = whole(&request) else { continue };
                    theirs.lock().unwrap().push_str(&whole);
                    request.clear();
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    if stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    received
}

/// A request's text once it is complete.
fn whole(request: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(request).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    (body.len() >= length.parse().ok()?).then_some(text.clone())
}

#[test]
fn who_listens_on_the_endpoints_port_first_ends_no_agent() {
    let folder = TempDir::new().unwrap();
    let address = free_address(folder.path()).unwrap();
    let squatter = squat(&address);
    let agent = start(folder.path(), format!("[prometheus]\nlisten = {address:?}\n"));
    wait_for_source(&agent, "sink:prometheus", "degraded", "a process of user 65534 listens there");
    wait_for_readings(folder.path(), READINGS);
    drop(squatter);
    let serves = || get(&address, "/metrics").is_ok_and(|page| page.contains("\ngpu_power_watts{"));
    assert!(until(WITHIN, || serves().then_some(())).is_some(), "{:#?}", agent.log());
    wait_for_source(&agent, "sink:prometheus", "ready", "");
}

#[test]
fn who_has_the_sinks_file_or_its_folder_ends_no_agent_and_reads_nothing() {
    let folder = TempDir::new().unwrap();
    let [open, target] = ["open", "target"].map(|name| folder.path().join(name));
    for (path, mode) in [(folder.path(), 0o755), (&*open, 0o1777)] {
        // The first one is there.
        let _ = fs::create_dir(path);
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    fs::write(&target, "root's\n").unwrap();
    let file = open.join("points.jsonl");
    let arguments = [&file, &target].map(|path| path.to_str().unwrap());
    assert!(attacker::command("place", &arguments).unwrap().status().unwrap().success());
    // A person who asks for lines is told at once.
    let mut once = Command::new(program::gpuwho().unwrap());
    once.args(["collect", "--once", "--sink"]).arg(format!("file:{}", file.display()));
    let answer = once.output().unwrap();
    let error = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert!(!answer.status.success() && error.contains("belongs to user 65534"), "{error}");

    let nvml = FakeNvml::install(folder.path(), "a10x1").unwrap();
    let interval = Some("200ms".to_owned());
    let config = Config { interval, file: Some(file.clone()), ..Config::default() };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    wait_for_source(&agent, "sink:file", "degraded", "the file belongs to user 65534");
    assert_eq!(fs::read_to_string(&target).unwrap(), "root's\n");
    // In a folder where everybody may replace it there is none.
    fs::remove_file(&file).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    wait_for_source(&agent, "sink:file", "degraded", "every user can write in a folder");
    // The operator's own: it is written as soon as it is so.
    fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
    let lines = || fs::read_to_string(&file).is_ok_and(|text| text.contains("\"gpu.energy\""));
    assert!(until(WITHIN, || lines().then_some(())).is_some(), "{:#?}", agent.log());
    wait_for_source(&agent, "sink:file", "ready", "");
}

/// What `gpuwho config check` says of a section.
fn checked(folder: &Path, text: &str) -> String {
    let file = folder.join("checked.toml");
    fs::write(&file, text).unwrap();
    let mut command = Command::new(program::gpuwho().unwrap());
    let output = command.args(["config", "check"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A receiver whose port a tenant has taken: a section with ADDRESS and FILE in it, and the key for its user.
fn squatted(section: &str, key: &str, source: &str, energy: &str) {
    let folder = TempDir::new().unwrap();
    let address = free_address(folder.path()).unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, TOKEN).unwrap();
    let section = section.replace("ADDRESS", &address);
    let section = section.replace("FILE", &secret.display().to_string());
    let squatter = squat(&address);
    let agent = start(folder.path(), section.clone());
    wait_for_source(&agent, source, "degraded", "a process of user 65534 accepts connections");
    wait_for_readings(folder.path(), READINGS);
    let said = checked(folder.path(), &section);
    assert!(said.contains(&format!("user 65534 (nobody) listens on {address}")), "{said}");
    assert!(said.contains(&format!("set {key}.receiver_user = 65534")), "{said}");
    let seen = [squatter.count("secret"), squatter.count("bytes")];
    assert_eq!(seen, [0, 0], "nothing is sent to a tenant");

    drop(squatter);
    let received = receive(&address);
    wait_for_source(&agent, source, "ready", "");
    let text = || received.lock().unwrap().clone();
    let has_all = until(WITHIN, || (text().matches(energy).count() > READINGS).then_some(()));
    assert!(has_all.is_some(), "{} of what waited", text().matches(energy).count());
    drop(agent);

    // Who is named is the receiver, and gets everything.
    let folder = TempDir::new().unwrap();
    let other = free_address(folder.path()).unwrap();
    let receiver = squat(&other);
    let section = section.replace(&address, &other);
    let agent = start(folder.path(), format!("{section}receiver_user = \"nobody\"\n"));
    // A signature is not the secret.
    let what = if section.contains("secret_file") { "bytes" } else { "secret" };
    let has_come = until(WITHIN, || (receiver.count(what) > 2).then_some(()));
    assert!(has_come.is_some(), "{:#?}", agent.log());
}

#[test]
fn who_takes_the_receivers_port_gets_no_token_and_no_points() {
    let section = "[otlp]\nendpoint = \"http://ADDRESS\"\nprotocol = \"http/json\"\n\
                   compression = \"none\"\ntoken_file = \"FILE\"\n";
    squatted(section, "otlp", "sink:otlp", "\"gpu.energy\"");
}

#[test]
fn who_takes_a_webhooks_port_gets_no_signature_and_no_points() {
    let section = "[webhook]\nurl = \"http://ADDRESS/hook\"\nmetrics = true\n\
                   secret_file = \"FILE\"\n";
    squatted(section, "webhook", "sink:webhook", "\"gpu.energy\"");
}

#[test]
fn who_takes_the_receivers_port_of_grpc_gets_no_token_and_no_byte() {
    let folder = TempDir::new().unwrap();
    let address = free_address(folder.path()).unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, TOKEN).unwrap();
    let section = |address: &str, more: &str| {
        format!(
            "[otlp]\nendpoint = \"http://{address}\"\nprotocol = \"grpc\"\ntoken_file = {:?}\n{more}",
            secret.display().to_string()
        )
    };
    let listen = |address: &str, user: u32| {
        let user = user.to_string();
        let arguments = [address, TOKEN, &user];
        Attacker::start(&mut attacker::command("squat-grpc", &arguments).unwrap())
    };
    let squatter = listen(&address, NOBODY);
    let agent = start(folder.path(), section(&address, ""));
    wait_for_source(&agent, "sink:otlp", "degraded", "a process of user 65534 accepts connections");
    wait_for_readings(folder.path(), READINGS);
    let seen = [squatter.count("secret"), squatter.count("bytes")];
    assert_eq!(seen, [0, 0], "nothing is sent to a tenant");

    // Root's receiver there gets all of it.
    drop(squatter);
    let receiver = until(WITHIN, || TcpListener::bind(&address).ok());
    drop(receiver.expect("a free port"));
    let receiver = listen(&address, 0);
    wait_for_source(&agent, "sink:otlp", "ready", "");
    let has_come = until(WITHIN, || (receiver.count("secret") > READINGS).then_some(()));
    assert!(has_come.is_some(), "{:#?}", agent.log());
    drop(agent);

    // Who is named is the receiver.
    let folder = TempDir::new().unwrap();
    let other = free_address(folder.path()).unwrap();
    let receiver = listen(&other, NOBODY);
    let agent = start(folder.path(), section(&other, "receiver_user = \"nobody\"\n"));
    let has_come = until(WITHIN, || (receiver.count("secret") > 2).then_some(()));
    assert!(has_come.is_some(), "{:#?}", agent.log());
}

#[test]
fn points_without_a_secret_go_on_and_the_stranger_is_named_once() {
    let folder = TempDir::new().unwrap();
    let address = free_address(folder.path()).unwrap();
    let squatter = squat(&address);
    let section = format!("[otlp]\nendpoint = \"http://{address}\"\ncompression = \"none\"\n");
    let agent = start(folder.path(), section);
    let warned = agent.wait_for_log("accepts connections", WITHIN).unwrap();
    assert!(warned.contains("user 65534") && warned.contains("receiver_user"), "{warned}");
    until(WITHIN, || (squatter.count("bytes") > READINGS).then_some(())).expect("points");
    let more = agent.log();
    assert!(!more.iter().any(|line| line.contains("accepts connections")), "{more:#?}");
}

#[test]
fn a_token_to_another_host_in_plain_text_is_an_error_that_names_the_key() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("gpuwho.toml");
    let text = "[otlp]\nendpoint = \"http://10.0.0.5:4318\"\ntoken_file = \"/etc/gpuwho/token\"\n";
    fs::write(&file, text).unwrap();
    let mut command = Command::new(program::gpuwho().unwrap());
    let output = command.args(["agent", "--config"]).arg(&file).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("otlp.insecure_secrets = true"), "{said}");
}

//! Wrong input from outside: every error says what was wrong, where, and what to do; 2 is the
//! caller's fault, 1 a failure, and nothing ever panics.

use gpuwho_tests::program;
use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A user that owns nothing.
const NOBODY: u32 = 65534;

struct Ran {
    code: Option<i32>,
    text: String,
}

fn gpuwho(words: &[&str]) -> Ran {
    run(Command::new(program::gpuwho().unwrap()).args(words))
}

/// Without what the test machine's own settings would add.
fn run(command: &mut Command) -> Ran {
    let output = command.env_remove("OTEL_EXPORTER_OTLP_ENDPOINT").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert!(!text.contains("panicked"), "{text}");
    Ran { code: output.status.code(), text }
}

fn refused(words: &[&str], code: i32, expected: &[&str]) {
    let ran = gpuwho(words);
    assert_eq!(ran.code, Some(code), "{words:?}: {}", ran.text);
    for part in expected {
        assert!(ran.text.contains(part), "{words:?} does not say {part:?}:\n{}", ran.text);
    }
}

/// A configuration file with this text.
fn file(folder: &TempDir, text: &str) -> String {
    let path = folder.path().join("gpuwho.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn an_unknown_key_is_named_with_file_line_and_nearest_key() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "[otlp]\nendpiont = \"http://127.0.0.1:4318\"\n");
    let place = format!("{path}:2: unknown key `endpiont`; did you mean `endpoint`?");
    refused(&["config", "check", &path], 2, &[&place]);
    refused(&["agent", "--config", &path], 2, &[&place]);
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_the_reason() {
    let folder = TempDir::new().unwrap();
    refused(&["config", "check", "/nonexistent.toml"], 2, &["/nonexistent.toml", "No such file"]);
    let path = file(&folder, "[agent\n");
    refused(&["agent", "--config", &path], 2, &[&format!("{path}:1:")]);
    let path = file(&folder, "[devices]\nbpf = \"yes\"\n");
    refused(
        &["agent", "--config", &path],
        2,
        &[&format!("{path}:2: `devices.bpf` is the text \"yes\"; write true or false")],
    );
    let path = file(&folder, "[otlp]\nendpoint = \"ftp://x\"\n");
    refused(&["agent", "--config", &path], 2, &["otlp.endpoint", "scheme", "http://HOST:4318"]);
}

#[test]
fn a_wrong_word_on_the_command_line_is_named() {
    refused(&["agnet"], 2, &["agnet", "agent"]);
    refused(&["agent", "--intervall", "1s"], 2, &["--intervall", "--interval"]);
    refused(&["agent", "--interval", "10"], 2, &["agent.interval", "10s"]);
    refused(&["agent", "--sink", "kafka"], 2, &["kafka", "stdout or file:PATH"]);
    refused(&["agent", "--log", "lod=?"], 2, &["lod=?"]);
    refused(&["agent", "--log", "inof"], 2, &["--log", "`inof`", "write error, warn, info"]);
    refused(&["agent", "--otlp", "ftp://x"], 2, &["--otlp: not an OTLP endpoint"]);
    refused(&["--gpu", "0", "doctor"], 2, &["--gpu before `doctor`"]);
    refused(&["collect", "nvidai", "--once"], 2, &["nvidai", "nvidia"]);
    refused(&["release", "--for", "0s"], 2, &["--for", "10m"]);
    refused(&["release", "--for", "10y"], 2, &["--for", "a day"]);
    refused(&["--watch", "0"], 2, &["--watch", "1 to 3600"]);
    refused(&["events", "--since", "yesterday"], 2, &["--since", "like 10m"]);
    refused(&["ps"], 2, &["gpuwho top"]);
}

#[test]
fn asking_an_agent_that_is_not_there_fails_with_the_remedy() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("gpuwho.sock");
    let socket = socket.to_str().unwrap();
    refused(&["--socket", socket], 1, &[socket, "gpuwho agent"]);
    let admin = folder.path().join("gpuwho-admin.sock");
    let words = [admin.to_str().unwrap(), "gpuwho agent"];
    refused(&["release", "--socket", socket], 1, &words);
}

#[test]
fn a_sink_that_cannot_be_opened_fails_with_its_path() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, &format!("[paths]\nrun = {:?}\n", folder.path()));
    let sink = "file:/nonexistent/points.jsonl";
    let words = ["agent", "--config", &path, "--sink", sink];
    refused(&words, 1, &["/nonexistent/points.jsonl", "No such file"]);
}

#[test]
fn a_host_without_a_driver_has_an_exit_code_of_its_own() {
    let ran = gpuwho(&["--nvidia-library", "/nonexistent/libnvidia-ml.so.1"]);
    assert_eq!(ran.code, Some(3), "{}", ran.text);
    let expected = [
        "no accelerator",
        "/nonexistent/libnvidia-ml.so.1",
        "gpuwho doctor --all",
        "no agent answers on",
    ];
    assert!(expected.iter().all(|part| ran.text.contains(part)), "{}", ran.text);
    assert!(!ran.text.contains("amd is absent"), "{}", ran.text);
}

#[test]
fn a_library_that_is_none_is_named() {
    let folder = TempDir::new().unwrap();
    let library = folder.path().join("libnvidia-ml.so.1");
    fs::write(&library, "not a library").unwrap();
    refused(
        &["--nvidia-library", library.to_str().unwrap()],
        2,
        &["nvidia.library", library.to_str().unwrap(), "is not a shared library"],
    );
}

#[test]
fn metrics_are_listed_with_what_they_are_and_found_by_a_part_of_their_name() {
    let ran = gpuwho(&["metrics", "gpu.power.limit"]);
    let expected = ["METRIC", "UNIT", "gpu.power.limit"];
    assert!(expected.iter().all(|part| ran.text.contains(part)), "{}", ran.text);
    assert!(ran.text.lines().count() > 2 && !ran.text.contains("gpu.energy"), "{}", ran.text);
    refused(&["metrics", "no.such"], 1, &["no metric has `no.such`"]);
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let mut command = Command::new(program::gpuwho().unwrap());
    let mut child =
        command.arg("metrics").arg("--markdown").stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn without_privilege_it_works_and_says_what_it_cannot_do() {
    if !rustix::process::geteuid().is_root() {
        gpuwho_tests::skip!("root, to become nobody");
    }
    let folder = TempDir::new().unwrap();
    // Where nobody may look: the build's own folder may be closed to others.
    let program = folder.path().join("gpuwho");
    fs::copy(program::gpuwho().unwrap(), &program).unwrap();
    open(folder.path());
    let ran = run(Command::new(&program).arg("doctor").uid(NOBODY).gid(NOBODY).current_dir("/"));
    assert_eq!(ran.code, Some(1), "{}", ran.text);
    let expected = ["not root", "sudo", "CAP_BPF", "/proc"];
    assert!(expected.iter().all(|part| ran.text.contains(part)), "{}", ran.text);
}

fn open(folder: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
}

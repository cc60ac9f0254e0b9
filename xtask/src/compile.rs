//! Builds the agent; its build script builds the BPF programs where the toolchain for them is.

use crate::setup::{self, Want};
use crate::{place, shell};
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `cargo xtask build` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Optimised and stripped
    #[arg(long)]
    release: bool,
}

/// A build profile of cargo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Quick to build; what the tests use.
    Debug,
    /// Optimised, and built within minutes.
    Release,
    /// What is shipped and measured.
    Shipped,
}

impl Profile {
    /// The folder below `target`.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
            Self::Shipped => "shipped",
        }
    }
}

/// `cargo xtask build`.
pub(crate) fn build(request: &Request) -> Result<()> {
    let profile = if request.release { Profile::Release } else { Profile::Debug };
    setup_toolchain()?;
    packages(profile, &["gpuwho"])?;
    println!("{}", agent(profile).display());
    Ok(())
}

/// Sets up what building needs. A machine that cannot have the BPF toolchain still gets an agent.
pub fn setup_toolchain() -> Result<()> {
    setup::ensure(&["build"], Want::Must)?;
    if !setup::ensure(&["bpf"], Want::Optional)? {
        eprintln!(
            "warning: building without the BPF programs: this agent polls /proc and misses \
             processes that live shorter than its interval"
        );
    }
    Ok(())
}

/// Builds packages of the workspace.
pub fn packages(profile: Profile, names: &[&str]) -> Result<()> {
    let mut command = shell::cargo(["build"]);
    if profile != Profile::Debug {
        command.args(["--profile", profile.folder()]);
    }
    for name in names {
        command.args(["--package", name]);
    }
    shell::run(&mut command)
}

/// Builds the demo and what it shows, not optimised and with no part that it does not need: who
/// tries it out waits for this.
pub(crate) fn demo() -> Result<()> {
    for_demo("build")
}

/// Checks what [`demo`] builds: its choice of features is nobody else's.
pub(crate) fn check_demo() -> Result<()> {
    for_demo("check")
}

fn for_demo(task: &str) -> Result<()> {
    let packages = ["gpuwho", "gpuwho-fake-nvml", "gpuwho-tests"];
    let features = ["--no-default-features", "--features", "gpuwho-tests/demo"];
    let mut command = shell::cargo([task]);
    command.args(features);
    shell::run(command.args(packages.iter().flat_map(|name| ["--package", name])))
}

/// The built agent.
pub fn agent(profile: Profile) -> PathBuf {
    place::target(profile.folder()).join("gpuwho")
}

/// Builds the agent alone, for tasks that ask it something.
pub(crate) fn debug_agent() -> Result<PathBuf> {
    packages(Profile::Debug, &["gpuwho"])?;
    Ok(agent(Profile::Debug))
}

/// A program that runs tests.
#[derive(Debug, PartialEq, Eq)]
pub struct TestProgram {
    /// The target that it tests, such as `gpuwho (lib)`; an integration test's own name.
    pub name: String,
    /// The program; empty for the examples.
    pub path: PathBuf,
    /// The folder of its package, in which it runs.
    pub folder: PathBuf,
    /// What makes cargo the test program of the examples in comments; none for a program.
    pub first: &'static [&'static str],
}

impl TestProgram {
    /// The examples in comments, of all libraries.
    pub(crate) fn examples() -> Self {
        let first: &[&str] = &["test", "--doc", "--no-fail-fast", "--"];
        Self { name: "examples".to_owned(), path: PathBuf::new(), folder: place::root(), first }
    }

    /// Runs it.
    pub(crate) fn command(&self) -> Command {
        let mut command = shell::cargo(self.first);
        if self.first.is_empty() {
            command = shell::program(&self.path, [] as [&str; 0]);
        }
        command.current_dir(&self.folder);
        command
    }
}

/// What is of the workspace but not of its default members and features: all that a change must not
/// break. The BPF crate builds only for the BPF target.
pub(crate) const EVERYTHING: [&str; 5] = [
    "--workspace",
    "--exclude",
    "gpuwho-ebpf",
    "--features",
    "gpuwho-tests/bench,gpuwho-tests/demo",
];

/// Builds all that the tests start or load, and the tests: in one go, because each choice of packages
/// and targets has its own choice of the dependencies' features, and builds them once more. The fuzz
/// targets are no programs without the fuzzer.
pub(crate) fn all() -> Result<Vec<TestProgram>> {
    test_programs(shell::cargo(["build"]).args(EVERYTHING).args(["--exclude", "gpuwho-fuzz"]), &[])
}

/// The same without the benchmark, the demo and the check on real hardware.
pub(crate) fn tested() -> Result<Vec<TestProgram>> {
    test_programs(&mut shell::cargo(["build"]), &[])
}

/// The same of some packages, for another command or target.
pub fn test_programs(build: &mut Command, packages: &[&str]) -> Result<Vec<TestProgram>> {
    build.args(packages.iter().flat_map(|name| ["--package", name]));
    build.args(["--lib", "--bins", "--tests", "--message-format=json-render-diagnostics"]);
    shell::output(build)?.lines().filter_map(|line| read_artifact(line).transpose()).collect()
}

/// The test program in one of cargo's messages, if it is about one.
fn read_artifact(message: &str) -> Result<Option<TestProgram>> {
    let message: Value = serde_json::from_str(message).context("reading cargo's messages")?;
    let (target, is_test) = (&message["target"], &message["profile"]["test"]);
    let (Some(path), Some(true)) = (message["executable"].as_str(), is_test.as_bool()) else {
        return Ok(None);
    };
    let name = target["name"].as_str().context("a target without a name")?;
    let name = match target["kind"][0].as_str() {
        Some("test") => name.to_owned(),
        Some("bin") => format!("{name} (bin)"),
        _ => format!("{name} (lib)"),
    };
    let manifest = message["manifest_path"].as_str().context("a target without a manifest")?;
    let folder = Path::new(manifest).parent().context("a manifest without a folder")?;
    Ok(Some(TestProgram { name, path: path.into(), folder: folder.into(), first: &[] }))
}

#[cfg(test)]
mod tests {
    use super::read_artifact;
    use std::path::Path;

    /// Of cargo 1.95, shortened.
    const LIBRARY: &str = r#"{"reason":"compiler-artifact","manifest_path":"/r/agent/Cargo.toml",
        "target":{"kind":["lib"],"name":"gpuwho","test":true},"profile":{"test":true},
        "executable":"/r/target/debug/deps/gpuwho-1","fresh":true}"#;

    #[test]
    fn test_programs_are_those_that_cargo_names() {
        let program = read_artifact(LIBRARY).unwrap().unwrap();
        assert_eq!(program.name, "gpuwho (lib)");
        assert_eq!(program.path, Path::new("/r/target/debug/deps/gpuwho-1"));
        assert_eq!(program.folder, Path::new("/r/agent"));
        let integration =
            LIBRARY.replace("[\"lib\"],\"name\":\"gpuwho\"", "[\"test\"],\"name\":\"e2e\"");
        assert_eq!(read_artifact(&integration).unwrap().unwrap().name, "e2e");
    }

    #[test]
    fn what_is_no_test_program_is_left_out() {
        let program =
            LIBRARY.replace("\"profile\":{\"test\":true}", "\"profile\":{\"test\":false}");
        let library = LIBRARY.replace("\"/r/target/debug/deps/gpuwho-1\"", "null");
        for message in [program.as_str(), &library, r#"{"reason":"build-finished"}"#] {
            assert_eq!(read_artifact(message).unwrap(), None);
        }
        assert!(read_artifact("warning: no JSON").is_err());
    }
}

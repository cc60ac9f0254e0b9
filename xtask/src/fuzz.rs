//! Coverage-guided fuzzing of the parsers that read what others than the host's root can write.
//! On demand: the same claims are property tests in `cargo xtask test`, and the CI's clippy checks
//! the targets. What is found stays in
//! `target/fuzz` with the corpus, and a failure prints the file that shows it again.

use crate::{place, shell};
use anyhow::{Context as _, Result, bail};
use std::fs;

/// What `cargo xtask fuzz` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// A target, by the name of its file in tests/fuzz/src/bin; every one without
    target: Option<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// What libFuzzer wants of the compiler: counters at the edges, a table of them, and compares.
/// Flags of a stable rustc, as `cargo fuzz --sanitizer none` gives them.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1";

/// `cargo xtask fuzz`.
pub(crate) fn fuzz(request: &Request) -> Result<()> {
    let targets = targets()?;
    let wanted: Vec<_> = match &request.target {
        Some(name) if !targets.contains(name) => {
            bail!("no fuzz target `{name}`; there are: {}", targets.join(", "))
        }
        Some(name) => vec![name.clone()],
        None => targets,
    };
    let folder = place::target("fuzz");
    let host = shell::capture(&mut shell::program("rustc", ["-vV"]))?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    // For a named target, so that build scripts and macros are not instrumented.
    let mut build = shell::cargo([
        "build",
        "-p",
        "gpuwho-fuzz",
        "--features",
        "libfuzzer",
        "--profile",
        "fuzz",
    ]);
    build.args(["--target", host, "--target-dir"]).arg(&folder).env("RUSTFLAGS", COVERAGE);
    shell::run(&mut build)?;
    for name in wanted {
        let corpus = folder.join("corpus").join(&name);
        let found = folder.join("found").join(&name);
        for path in [&corpus, &found] {
            fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
        }
        let program = folder.join(host).join("fuzz").join(&name);
        let mut run = shell::program(&program, [format!("-max_total_time={}", request.seconds)]);
        run.arg(format!("-artifact_prefix={}/", found.display()));
        run.args(["-max_len=8192", "-print_final_stats=1"]).arg(&corpus);
        // What to begin with; what is found is written to the first folder only.
        let seeds = place::root().join("tests/fuzz/corpus").join(&name);
        shell::run(run.args(seeds.is_dir().then_some(seeds)))?;
    }
    Ok(())
}

/// The names of all targets.
fn targets() -> Result<Vec<String>> {
    let folder = place::root().join("tests/fuzz/src/bin");
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut names: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

//! All that a change must pass, with the time each step took.

use crate::compile::{self, Profile};
use crate::{chart, docs, place, setup, shell, test, tidy, vm};
use anyhow::{Context as _, Result, bail};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the lints say while they run.
const LINTS_LOG: &str = "clippy.log";

/// How a step ended, if it did not fail.
enum Outcome {
    Passed(String),
    Skipped(String),
}

/// A step of the CI.
struct Step {
    name: &'static str,
    perform: fn() -> Result<Outcome>,
}

/// The steps; those after `build` find built what they need. Lints run beside the tests, which mostly wait.
const STEPS: &[Step] = &[
    Step { name: "setup", perform: prepare },
    Step { name: "fmt", perform: fmt },
    Step { name: "deny", perform: deny },
    Step { name: "advisories", perform: advisories },
    Step { name: "build", perform: build },
    Step { name: "tidy", perform: || tidy::tidy().map(passed) },
    Step { name: "docs", perform: || docs::check(&agent()).map(passed) },
    Step { name: "chart", perform: chart },
    Step { name: "test", perform: tests },
    Step { name: "slow", perform: slow },
    Step { name: "vm", perform: kernels },
];

/// `cargo xtask ci`. Every step runs, also after one has failed; the test counts close the output.
pub(crate) fn ci() -> Result<()> {
    let mut table = Vec::new();
    let mut failed = Vec::new();
    for step in STEPS {
        println!("== {}", step.name);
        let began = Instant::now();
        let (word, note) = match (step.perform)() {
            Ok(Outcome::Passed(note)) => ("passed", note),
            Ok(Outcome::Skipped(why)) => ("skipped", why),
            Err(error) => {
                failed.push(step.name);
                ("FAILED", format!("{error:#}"))
            }
        };
        table.push(row(step.name, began.elapsed(), word, &note));
    }
    println!("== summary\n{}", table.join("\n"));
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn row(name: &str, took: Duration, word: &str, note: &str) -> String {
    // Only the last line: a tally's closing counts, an error's summary.
    let note = note.lines().last().unwrap_or_default();
    format!("{name:<10}{:>7.1} s  {word:<8} {note}", took.as_secs_f64()).trim_end().to_owned()
}

fn passed((): ()) -> Outcome {
    Outcome::Passed(String::new())
}

fn prepare() -> Result<Outcome> {
    compile::setup_toolchain().map(passed)
}

fn fmt() -> Result<Outcome> {
    shell::run(&mut shell::cargo(["fmt", "--all", "--check"])).map(passed)
}

/// Everything, the fuzz targets too, with what the tests leave of the machine.
fn start_lints() -> Result<Child> {
    let mut command = shell::program("nice", ["-n", "19"]);
    let clippy = shell::cargo(["clippy", "--all-targets"]);
    command.arg(clippy.get_program()).args(clippy.get_args()).args(compile::EVERYTHING);
    command.args(["--", "-D", "warnings"]);
    let log = File::create(place::target(LINTS_LOG)).context("the log of the lints")?;
    command.stdout(Stdio::null()).stderr(log);
    command.spawn().context("starting clippy")
}

/// What the lints have found.
fn finish_lints(mut lints: Child) -> Result<()> {
    let status = lints.wait()?;
    let said = fs::read_to_string(place::target(LINTS_LOG)).unwrap_or_default();
    if !status.success() {
        print!("{said}");
        bail!("clippy ended with {status}");
    }
    Ok(())
}

fn build() -> Result<Outcome> {
    let programs = compile::all()?;
    Ok(Outcome::Passed(format!("{} test programs", programs.len())))
}

/// The agent of that build.
fn agent() -> PathBuf {
    compile::agent(Profile::Debug)
}

/// The chart, where Helm is there.
fn chart() -> Result<Outcome> {
    Ok(if chart::check_if_built()? {
        passed(())
    } else {
        Outcome::Skipped("needs Helm, which `cargo xtask chart` builds".to_owned())
    })
}

fn tests() -> Result<Outcome> {
    let request = test::Request::everything();
    let mut lints = None;
    // The examples in comments, which cargo builds, wait for the lints.
    let tally = test::perform_beside(&request, test::Selected::Fast, || {
        lints = Some(start_lints()?);
        Ok(())
    });
    let linted = lints.map_or(Ok(()), finish_lints);
    let tally = tally?;
    linted?;
    Ok(Outcome::Passed(tally.to_string()))
}

/// One of the slow suites: each commit another, so that all are run here too.
fn slow() -> Result<Outcome> {
    let suite = test::of_this_commit()?;
    test::slow(&test::Request::everything(), &[suite])?;
    Ok(Outcome::Passed(suite.name.to_owned()))
}

fn kernels() -> Result<Outcome> {
    if let Err(error) = setup::ensure(&["vm"], setup::Want::Must) {
        return Ok(Outcome::Skipped(format!("{error:#}")));
    }
    let Some(summary) = vm::if_due()? else {
        return Ok(Outcome::Passed("every kernel has passed with these sources".to_owned()));
    };
    Ok(if summary.booted == 0 {
        Outcome::Skipped("no kernel could be had".to_owned())
    } else {
        let vm::Summary { booted, skipped, built } = summary;
        let built = built.as_secs_f64();
        Outcome::Passed(format!("{booted} kernels, {skipped} skipped (built in {built:.0} s)"))
    })
}

/// Licences and sources of the dependencies.
fn deny() -> Result<Outcome> {
    if let Err(error) = setup::ensure(&["deny"], setup::Want::Must) {
        return Ok(Outcome::Skipped(format!("needs cargo-deny: {error:#}")));
    }
    let mut check = cargo_deny(&["check", "bans", "licenses", "sources"])?;
    shell::run(&mut check).map(passed).context("checking deny.toml")
}

/// What has been published against the dependencies, where the list of it can be fetched.
fn advisories() -> Result<Outcome> {
    let fetched = setup::cargo_deny().is_ok_and(|program| program.is_file())
        && shell::succeeds(&mut cargo_deny(&["fetch", "db"])?);
    if !fetched {
        return Ok(Outcome::Skipped("needs the RustSec advisory database".to_owned()));
    }
    let mut check = cargo_deny(&["check", "--disable-fetch", "advisories"])?;
    shell::run(&mut check).map(passed).context("checking advisories")
}

fn cargo_deny(arguments: &[&str]) -> Result<Command> {
    let mut command = shell::program(setup::cargo_deny()?, ["--manifest-path"]);
    command.arg(place::root().join("Cargo.toml")).args(["--locked"]).args(arguments);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::row;
    use crate::place;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn workflows_have_the_pinned_toolchain_and_actions_by_their_commits() {
        let root = place::root();
        let pinned: toml::Table =
            fs::read_to_string(root.join("rust-toolchain.toml")).unwrap().parse().unwrap();
        let image = format!("rust:{}-bookworm", pinned["toolchain"]["channel"].as_str().unwrap());
        let mut images = 0;
        for entry in fs::read_dir(root.join(".github/workflows")).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            for (key, value) in text.lines().filter_map(|line| line.trim().split_once(": ")) {
                if key.ends_with("image") {
                    images += 1;
                    assert_eq!(value, image);
                } else if key.ends_with("uses") {
                    let commit = value.split(['@', ' ']).nth(1).unwrap();
                    assert!(commit.len() == 40 && value.contains(" # v"), "{value}");
                }
            }
        }
        assert_eq!(images, 3);
    }

    #[test]
    fn a_step_that_ran_has_its_time_and_its_last_word() {
        let note = "skipped x: needs y\n3 passed, 0 failed, 1 skipped";
        assert_eq!(
            row("test", Duration::from_millis(61_540), "passed", note),
            "test         61.5 s  passed   3 passed, 0 failed, 1 skipped"
        );
    }
}

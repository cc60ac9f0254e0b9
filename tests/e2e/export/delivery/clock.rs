//! The host's clock steps forward by more than requests are kept, and back behind the agent's start.
//! Debian's libfaketime gives the agent and its children a wall clock of their own; the monotonic clock
//! stays the host's.

use super::receiver::{Answer, Receiver};
use super::{WITHIN, assert_nothing_is_missing, kill, spool, xid};
use gpuwho_export::spool::Found;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::kmsg::Kmsg;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::until::until;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A clock whose distance from the host's a test sets.
struct SteppedClock {
    file: PathBuf,
}

impl SteppedClock {
    fn new(folder: &Path) -> Self {
        let clock = Self { file: folder.join("clock") };
        clock.step_to("+0");
        clock
    }

    /// Sets it: `+8d`, `-2h`. The file is replaced, so that nobody reads half of it.
    fn step_to(&self, distance: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, distance).unwrap();
        fs::rename(&new, &self.file).unwrap();
    }

    /// What starts a program with this clock.
    fn launcher(&self, library: &Path) -> Vec<String> {
        let variables = [
            format!("LD_PRELOAD={}", library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
        ];
        std::iter::once("env".to_owned()).chain(variables).collect()
    }
}

/// Debian's library, on whichever architecture.
fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut all = folders.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    all.find(|path| path.is_file())
}

#[test]
fn a_clock_that_steps_both_ways_loses_only_what_it_makes_too_old_and_counts_that() {
    let Some(library) = library() else {
        gpuwho_tests::skip!("Debian's libfaketime");
    };
    let folder = TempDir::new().unwrap();
    let nvml = FakeNvml::install(folder.path(), "a10x1").unwrap();
    let mut kmsg = Kmsg::new(folder.path()).unwrap();
    let clock = SteppedClock::new(folder.path());
    let receiver = Receiver::start(|_| Answer::Status(503));
    let config = Config {
        interval: Some("200ms".to_owned()),
        kmsg: Some(kmsg.path()),
        otlp: Some(Otlp { endpoint: receiver.url(""), protocol: Some("http/json") }),
        launcher: clock.launcher(&library),
        more: spool(folder.path()),
        ..Config::default()
    };
    let mut agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    kmsg.write_line(&xid(0)).unwrap();
    // The receiver takes nothing yet: what is made waits on the disk, at three different times.
    let more = |by: u64| {
        let before = made(folder.path());
        let more = || (made(folder.path()) >= before + by).then_some(());
        until(WITHIN, more).expect("points are made");
    };
    until(WITHIN, || (made(folder.path()) >= 500).then_some(())).expect("points are made");
    clock.step_to("-2d");
    more(500);
    clock.step_to("+8d");
    more(500);
    let expired = || {
        let found = Found::read(&folder.path().join("spool/otlp")).ok()?;
        (found.totals.expired > 0).then_some(())
    };
    until(WITHIN, expired).expect("what was made a week ago is too old");
    receiver.answer_well();
    clock.step_to("-1h");
    more(500);
    kill(&mut agent, Signal::TERM);
    let sinks = ["otlp", "otlp-logs"];
    let lost = assert_nothing_is_missing(folder.path(), (&receiver, 0), &sinks);
    assert!(lost > 0, "{lost}");
    let outcome = receiver.outcome();
    assert!(outcome.accepted > 0 && outcome.starts_late == 0, "{outcome:?}");
}

/// Points made so far, as the spool has them; 0 while one of its files is being replaced.
fn made(folder: &Path) -> u64 {
    Found::read(&folder.join("spool/otlp")).map_or(0, |found| found.made)
}

//! Whom a fault affects: the process that its line names, or all who are on the device.

use super::scene::{Scene, text};
use super::{PCI, WITHIN};
use crate::fixture::wait_for_holder;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Driver, PodSpec, Qos, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::Script;
use serde_json::Value;

const OTHER: PodSpec<'_> = PodSpec {
    namespace: "web",
    name: "chat-0",
    container: "serve",
    qos: Qos::Guaranteed,
    driver: Driver::Systemd,
};

/// Processes here that the records of a line name, each with why.
type Affected = &'static [(&'static str, &'static str)];

const ALL: Affected = &[("one", "device"), ("other", "device")];
const MARKED: Affected = &[("one", "named"), ("other", "device")];
const ONE: Affected = &[("one", "named")];
const ANY: Affected = &[("one", "candidate"), ("other", "candidate")];

/// What a line says, with the words for processes in the place of their numbers, how bad it is, and
/// whom it affects.
const ROWS: &[(&str, &str, Affected)] = &[
    ("79, pid='<unknown>', name=<unknown>, GPU has fallen", "critical", ALL),
    ("79, pid={one}, name=a, GPU has fallen off the bus.", "critical", MARKED),
    ("95, pid={one}, name=a, Uncontained: LTC TAG", "critical", MARKED),
    ("119, pid={poller}, name=nv-hostengine, Timeout after 45s", "critical", ALL),
    ("74, pid={reader}, name=gpuwho, NVLink: fatal error", "critical", ALL),
    ("145, pid={one}, name=a, RLW_REMAP Fatal XC0 i0 Link 10 (0x4 0x40)", "critical", MARKED),
    ("145, pid={one}, name=a, RLW_REMAP Nonfatal XC0 i0 Link 10 (0x4 0x4)", "warning", ONE),
    ("31, pid={one}, name=a, Ch 00000008", "warning", ONE),
    ("94, pid={other}, name=b, Contained: SM (0x1)", "warning", &[("other", "named")]),
    ("43, pid={elsewhere}, name=c, Ch 00000008", "warning", &[]),
    ("43, pid={poller}, name=nv-hostengine, Ch 00000008", "warning", &[]),
    ("31, Ch 00000008, intr 10000000", "warning", ANY),
    ("154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "critical", ALL),
    ("154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)", "info", ALL),
];

#[test]
fn a_line_affects_the_process_that_it_names_or_everybody_on_the_device_by_its_code() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    let pod = scene.stage.pod(&OTHER).unwrap();
    let other = Worker::on(&pod, &[0]).unwrap();
    let service = scene.stage.service("dcgm").unwrap();
    let script = Script { gpus: vec![0], comm: "nv-hostengine".to_owned(), ..Script::default() };
    let poller = Worker::start(Some(&service), &script).unwrap();
    // On another device.
    let elsewhere = Worker::on(&pod, &[1]).unwrap();
    let agent = scene.agent.as_ref().unwrap();
    for worker in [&other, &poller, &elsewhere] {
        wait_for_holder(agent, worker.pid());
    }
    let ours = [
        ("one", scene.worker.pid()),
        ("other", other.pid()),
        ("poller", poller.pid()),
        ("elsewhere", elsewhere.pid()),
        ("reader", agent.reader().unwrap()),
        ("agent", agent.pid()),
    ];
    let line = |words: &str| {
        let numbers = ours.iter().fold(words.to_owned(), |words, (name, pid)| {
            words.replace(&format!("{{{name}}}"), &pid.to_string())
        });
        format!("NVRM: Xid (PCI:{PCI}): {numbers}")
    };
    for (words, ..) in ROWS {
        scene.kmsg.write_line(&line(words)).unwrap();
    }
    for (words, severity, expected) in ROWS {
        let affected = reported(&scene, &line(words), severity, &ours, expected.len());
        let expected: Vec<_> =
            expected.iter().map(|(name, why)| (*name, (*why).to_owned())).collect();
        assert_eq!(affected, expected, "{words}");
    }
}

/// The processes that the records of a line name, at least so many.
fn reported(
    scene: &Scene,
    line: &str,
    severity: &str,
    ours: &[(&'static str, u32)],
    least: usize,
) -> Vec<(&'static str, String)> {
    let named = |record: &Value| {
        // Processes of other tests hold their own nodes of that name.
        let pid = record["attributes"]["process.pid"].as_u64()?;
        let (name, _) = ours.iter().find(|(_, ours)| u64::from(*ours) == pid)?;
        Some((*name, text(&record["attributes"]["gpuwho.event.affected"])))
    };
    let records = || {
        let mut records = scene.lines("event");
        records.retain(|record| record["body"] == line);
        let affected: Vec<_> = records.iter().filter_map(named).collect();
        (!records.is_empty() && affected.len() >= least).then_some((records, affected))
    };
    let (records, mut affected) = until(WITHIN, records).unwrap_or_else(|| panic!("{line}"));
    assert!(records.iter().all(|record| record["severity"] == severity), "{records:#?}");
    affected.sort_unstable();
    affected
}

//! Whom a fault affects: the process that its line names, or all who are on the device.

use super::scene::Scene;
use super::{PCI, WITHIN};
use crate::setting::wait_for_holder;
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

/// Numbers of the processes here that a record of this line names, each with why.
type Told<'a> = &'a [(u32, &'static str)];

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
    let reader = agent.reader().unwrap();
    let (one, other) = (scene.worker.pid(), other.pid());
    let (poller, elsewhere) = (poller.pid(), elsewhere.pid());
    let ours = [one, other, poller, elsewhere, reader, agent.pid()];

    let all = |why| vec![(one, why), (other, why)];
    let marked = vec![(one, "named"), (other, "device")];
    let link = |how| format!("RLW_REMAP {how} XC0 i0 Link 10 (0x00000004 0x00000040)");
    let rows: Vec<(String, &str, Vec<(u32, &'static str)>)> = vec![
        (
            "79, pid='<unknown>', name=<unknown>, GPU has fallen".to_owned(),
            "critical",
            all("device"),
        ),
        (format!("79, pid={one}, name=a, GPU has fallen"), "critical", marked.clone()),
        (format!("95, pid={one}, name=a, Uncontained: LTC TAG"), "critical", marked.clone()),
        (
            format!("119, pid={poller}, name=nv-hostengine, Timeout after 45s"),
            "critical",
            all("device"),
        ),
        (format!("74, pid={reader}, name=gpuwho, NVLink: fatal"), "critical", all("device")),
        (format!("145, pid={one}, name=a, {}", link("Fatal")), "critical", marked),
        (format!("145, pid={one}, name=a, {}", link("Nonfatal")), "warning", vec![(one, "named")]),
        (format!("31, pid={one}, name=a, Ch 00000008"), "warning", vec![(one, "named")]),
        (format!("94, pid={other}, name=b, Contained: SM"), "warning", vec![(other, "named")]),
        (format!("43, pid={elsewhere}, name=c, Ch 00000008"), "warning", vec![]),
        (format!("43, pid={poller}, name=nv-hostengine, Ch 00000008"), "warning", vec![]),
        ("31, Ch 00000008, intr 10000000".to_owned(), "warning", all("candidate")),
        (
            "154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)".to_owned(),
            "critical",
            all("device"),
        ),
        (
            "154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)".to_owned(),
            "info",
            all("device"),
        ),
    ];
    let line = |words: &str| format!("NVRM: Xid (PCI:{PCI}): {words}");
    for (words, ..) in &rows {
        scene.kmsg.say(&line(words)).unwrap();
    }
    for (words, severity, expected) in rows {
        let line = line(&words);
        tells(&scene, (&line, severity), &ours, &expected);
    }
}

fn tells(scene: &Scene, (line, severity): (&str, &str), ours: &[u32], expected: Told<'_>) {
    let records = || {
        let records = scene.lines("event").into_iter().filter(|record| record["body"] == line);
        Some(records.collect::<Vec<_>>()).filter(|records| !records.is_empty())
    };
    let records: Vec<Value> = until(WITHIN, records).unwrap_or_else(|| panic!("{line}"));
    assert!(records.iter().all(|record| record["severity"] == severity), "{records:#?}");
    let mut told: Vec<(u32, &str)> = Vec::new();
    for attributes in records.iter().map(|record| &record["attributes"]) {
        let pid = attributes["process.pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        // Processes of other tests hold their own nodes of that name.
        if let Some(pid) = pid.filter(|pid| ours.contains(pid)) {
            told.push((pid, attributes["gpuwho.event.affected"].as_str().unwrap_or_default()));
        }
    }
    let mut expected = expected.to_vec();
    told.sort_unstable();
    expected.sort_unstable();
    assert_eq!(told, expected, "{line}");
}

//! A pod's process on a device, an agent, and what the driver and the kernel say.

use super::WITHIN;
use crate::fixture::{TRAINER, wait_for_holder};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::kmsg::Kmsg;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::stage::{Expected, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use serde_json::Value;
use std::fs;

/// A pod's process on the first of eight devices, an agent, and a kernel log.
pub(super) struct Scene {
    // Ended and removed before the stage under them.
    pub(super) agent: Option<Agent>,
    pub(super) worker: Worker,
    pub(super) kmsg: Kmsg,
    config: Config,
    pub(super) nvml: FakeNvml,
    pub(super) expected: Expected,
    /// The pod's container.
    pub(super) cgroup: String,
    pub(super) stage: Stage,
}

impl Scene {
    pub(super) fn new(
        mut stage: Stage,
        otlp: Option<Otlp>,
        before: impl FnOnce(&mut Kmsg, &mut FakeNvml),
    ) -> Self {
        let pod = stage.pod(&TRAINER).unwrap();
        let mut nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap().from_now();
        let worker = Worker::on(&pod, &[0]).unwrap();
        nvml.set_processes(0, &[Some(worker.pid())]).unwrap();
        let mut kmsg = Kmsg::new(stage.folder()).unwrap();
        before(&mut kmsg, &mut nvml);
        let config = Config {
            interval: Some("500ms".to_owned()),
            pod_logs: Some(stage.pod_logs()),
            kmsg: Some(kmsg.path()),
            file: Some(stage.folder().join("points.jsonl")),
            otlp,
            // These devices and their driver have conditions of their own, which have events.
            more: "[health]\nenabled = false\n[advisories]\nenabled = false\n".to_owned(),
            ..Config::default()
        };
        let (expected, cgroup) = (pod.expected.clone(), pod.path.clone());
        let mut scene = Self { agent: None, worker, kmsg, config, nvml, expected, cgroup, stage };
        scene.restart();
        scene
    }

    /// Another agent after this one.
    pub(super) fn restart(&mut self) {
        drop(self.agent.take());
        let agent = Agent::start(self.stage.folder(), &self.config, Some(&self.nvml)).unwrap();
        self.ready(&agent);
        self.agent = Some(agent);
    }

    /// Until the agent knows the device and who is on it.
    fn ready(&self, agent: &Agent) {
        wait_for_holder(agent, self.worker.pid());
        let on = |who: &Value| {
            let devices = who["devices"].as_array()?;
            let is_used = |device: &Value| {
                device["processes"].as_array().is_some_and(|processes| !processes.is_empty())
            };
            devices.iter().any(is_used).then_some(())
        };
        agent.wait_for("the device's processes", WITHIN, on).unwrap();
    }

    /// Until the driver's events are waited for.
    pub(super) fn watching(&self) {
        let watching = |who: &Value| {
            let mut sources = who["sources"].as_array()?.iter();
            sources.find(|s| s["name"] == "nvml_events" && s["state"] == "ready").map(|_| ())
        };
        let agent = self.agent.as_ref().unwrap();
        agent.wait_for("the driver's events", WITHIN, watching).unwrap();
    }

    /// The file sink's lines about events so far, one an event. Other tests' processes hold their
    /// own nodes of the same name at the same time, and are victims as well.
    pub(super) fn events(&self) -> Vec<Value> {
        let mut seen: Vec<(String, Value)> = Vec::new();
        let is_fault = |line: &Value| line["event"] != "gpuwho.receipt";
        for line in self.lines("event").into_iter().filter(is_fault) {
            let id = text(&line["attributes"]["gpuwho.event.id"]);
            let is_mine = line["attributes"]["process.pid"] == self.worker.pid();
            match seen.iter_mut().find(|(known, _)| *known == id) {
                Some((_, kept)) if is_mine => *kept = line,
                Some(_) => {}
                None => seen.push((id, line)),
            }
        }
        seen.into_iter().map(|(_, line)| line).collect()
    }

    pub(super) fn lines(&self, key: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.stage.folder().join("points.jsonl")).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole).to_owned();
        let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| !line[key].is_null()).collect()
    }

    pub(super) fn wait_for_events(&self, count: usize) -> Vec<Value> {
        let enough = || Some(self.events()).filter(|events| events.len() >= count);
        until(WITHIN, enough).unwrap_or_else(|| panic!("{:#?}", self.events()))
    }

    /// The last value of an XID's counter in the file.
    pub(super) fn xids(&self, code: u64) -> Option<i64> {
        let points = self.lines("metric");
        let of_code = |point: &&Value| {
            point["metric"] == "gpu.xid.errors" && point["attributes"]["gpu.xid.code"] == code
        };
        points.iter().rfind(of_code)?["value"].as_i64()
    }

    pub(super) fn wait_for_xids(&self, code: u64, count: i64) {
        let counted = until(WITHIN, || (self.xids(code) == Some(count)).then_some(()));
        assert!(counted.is_some(), "XID {code}: {:?} instead of {count}", self.xids(code));
    }

    /// What the pod's attributes on an event must be.
    pub(super) fn of_the_pod(&self) -> Vec<(&'static str, String)> {
        let expected = self.expected.clone();
        vec![
            ("k8s.namespace.name", expected.namespace.unwrap()),
            ("k8s.pod.name", expected.pod.unwrap()),
            ("k8s.pod.uid", expected.pod_uid.unwrap()),
            ("process.pid", self.worker.pid().to_string()),
        ]
    }
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

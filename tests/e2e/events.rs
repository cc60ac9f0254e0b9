//! What the kernel says about a device arrives once, with whose work it struck, and is counted.

use crate::setting::{TRAINER, wait_for_holder};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{Attributes, ReceivedRecord, of};
use gpuwho_tests::kmsg::Kmsg;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Expected, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use serde_json::Value;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A few ticks and one start of the reader, on a machine under load.
const WITHIN: Duration = Duration::from_secs(30);

/// The address of the first device of `h100x8`.
const PCI: &str = "0000:10:00";
/// Its UUID.
const UUID: &str = "GPU-4f6b1c1e-8f0a-4c55-9d10-000000000000";

/// A pod's process on the first of eight devices, an agent, and a kernel log.
struct Scene {
    // Ended and removed before the stage under them.
    agent: Option<Agent>,
    worker: Worker,
    kmsg: Kmsg,
    config: Config,
    nvml: FakeNvml,
    expected: Expected,
    /// The pod's container.
    cgroup: String,
    stage: Stage,
}

impl Scene {
    fn new(
        mut stage: Stage,
        otlp: Option<Otlp>,
        before: impl FnOnce(&mut Kmsg, &FakeNvml),
    ) -> Self {
        let pod = stage.pod(&TRAINER).unwrap();
        let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap().from_now();
        let worker = Worker::on(&pod, &[0]).unwrap();
        nvml.set_processes(0, &[Some(worker.pid())]).unwrap();
        let mut kmsg = Kmsg::new(stage.folder()).unwrap();
        before(&mut kmsg, &nvml);
        let config = Config {
            interval: Some("500ms".to_owned()),
            pod_logs: Some(stage.pod_logs()),
            kmsg: Some(kmsg.path()),
            file: Some(stage.folder().join("told.jsonl")),
            otlp,
            ..Config::default()
        };
        let (expected, cgroup) = (pod.expected.clone(), pod.path.clone());
        let mut scene = Self { agent: None, worker, kmsg, config, nvml, expected, cgroup, stage };
        scene.restart();
        scene
    }

    /// Another agent after this one.
    fn restart(&mut self) {
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
    fn watching(&self) {
        let watching = |who: &Value| {
            let mut sources = who["sources"].as_array()?.iter();
            sources.find(|s| s["name"] == "nvml_events" && s["state"] == "ready").map(|_| ())
        };
        let agent = self.agent.as_ref().unwrap();
        agent.wait_for("the driver's events", WITHIN, watching).unwrap();
    }

    /// The file sink's lines about events so far, one an event. Other tests' processes hold their
    /// own nodes of the same name at the same time, and are victims as well.
    fn events(&self) -> Vec<Value> {
        let mut seen: Vec<(String, Value)> = Vec::new();
        for line in self.lines("event") {
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

    fn lines(&self, key: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.stage.folder().join("told.jsonl")).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole).to_owned();
        let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| !line[key].is_null()).collect()
    }

    fn wait_for_events(&self, count: usize) -> Vec<Value> {
        let enough = || Some(self.events()).filter(|events| events.len() >= count);
        until(WITHIN, enough).unwrap_or_else(|| panic!("{:#?}", self.events()))
    }

    /// The last value of an XID's counter in the file.
    fn xids(&self, code: u64) -> Option<i64> {
        let points = self.lines("metric");
        let of_code = |point: &&Value| {
            point["metric"] == "gpu.xid.errors" && point["attributes"]["gpu.xid.code"] == code
        };
        points.iter().rfind(of_code)?["value"].as_i64()
    }

    fn wait_for_xids(&self, code: u64, count: i64) {
        let counted = until(WITHIN, || (self.xids(code) == Some(count)).then_some(()));
        assert!(counted.is_some(), "XID {code}: {:?} instead of {count}", self.xids(code));
    }

    /// What the pod's attributes on an event must be.
    fn of_the_pod(&self) -> Vec<(&'static str, String)> {
        let expected = self.expected.clone();
        vec![
            ("k8s.namespace.name", expected.namespace.unwrap()),
            ("k8s.pod.name", expected.pod.unwrap()),
            ("k8s.pod.uid", expected.pod_uid.unwrap()),
            ("process.pid", self.worker.pid().to_string()),
        ]
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[test]
fn an_xid_arrives_at_the_collector_once_with_its_pod_and_its_action() {
    let stage = or_skip!(Stage::new());
    let folder = tempfile::tempdir().unwrap();
    let collector = or_skip!(Collector::start(folder.path()));
    let otlp = Otlp { endpoint: collector.grpc_endpoint(), protocol: Some("grpc") };
    let mut scene = Scene::new(stage, Some(otlp), |_, _| {});
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let line = format!("NVRM: Xid (PCI:{PCI}): 79, GPU has fallen off the bus.");
    scene.kmsg.say(&line).unwrap();
    scene.wait_for_xids(79, 1);
    let uid = scene.expected.pod_uid.clone().unwrap();
    let mine = || {
        let mut records = collector.records().unwrap();
        records.retain(|record| record.attrs.get("k8s.pod.uid") == Some(&uid));
        records
    };
    let arrived = || Some(mine()).filter(|records| !records.is_empty());
    let records: Vec<ReceivedRecord> = until(WITHIN, arrived).unwrap();
    let [record] = &records[..] else { panic!("one record: {records:#?}") };
    assert_eq!((record.event.as_str(), record.severity), ("gpu.xid", 21));
    assert_eq!((record.severity_text.as_str(), &record.body), ("critical", &line));
    assert!(u128::from(record.time) >= before - 1_000_000, "{} {before}", record.time);
    assert!(record.observed >= record.time && record.observed - record.time < 20_000_000_000);
    let mut wanted: Attributes = [
        ("gpu.uuid", UUID),
        ("gpu.index", "0"),
        ("gpu.xid.code", "79"),
        ("gpuwho.event.source", "kmsg"),
        ("gpuwho.event.action", "drain the node and restart it; check power, seating and PCIe"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    wanted.extend(scene.of_the_pod().into_iter().map(|(key, value)| (key.to_owned(), value)));
    let found = record.attrs.iter().filter(|(key, _)| wanted.contains_key(*key));
    assert_eq!(found.map(|(k, v)| (k.clone(), v.clone())).collect::<Attributes>(), wanted);
    assert_eq!(record.resource["service.name"], "gpuwho");

    let counted = collector.wait_for(WITHIN, |points| {
        let points = of(points, "gpu.xid.errors", &[("gpu.xid.code", "79")]);
        let values = points.iter().filter_map(|point| point.number());
        let values: Vec<_> = values.map(|value| value.to_string()).collect();
        (values.len() >= 3).then_some(values)
    });
    let values = counted.unwrap().expect("the counter");
    assert!(values[0] == "0" && values[1..].iter().all(|value| value == "1"), "{values:?}");
    assert_eq!(mine().len(), 1);
}

#[test]
fn the_drivers_event_and_the_log_line_of_one_xid_are_one_event() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    scene.watching();
    let happens = "\n[[event]]\ndevice = 0\ndata = 79\n";
    let scenario = fs::read_to_string(scene.nvml.scenario()).unwrap();
    fs::write(scene.nvml.scenario(), scenario + happens).unwrap();
    let line = format!("NVRM: Xid (PCI:{PCI}): 79, GPU has fallen off the bus.");
    scene.kmsg.say(&line).unwrap();
    let told = scene.wait_for_events(1);
    assert_eq!(told[0]["attributes"]["gpuwho.event.source"], "nvml+kmsg", "{told:#?}");
    assert_eq!(told[0]["body"], line);
    for (key, value) in scene.of_the_pod() {
        assert_eq!(text(&told[0]["attributes"][key]), value, "{told:#?}");
    }
    scene.wait_for_xids(79, 1);
    assert_eq!(scene.events().len(), 1);
}

#[test]
fn a_device_that_is_taken_from_its_driver_is_let_go_of_and_taken_again() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    let line = "NVRM: Attempting to remove device 0000:10:00.0 with non-zero usage count!";
    scene.kmsg.say(line).unwrap();
    let state = |wanted: &'static str| {
        move |who: &Value| (who["devices"][0]["state"] == wanted).then_some(())
    };
    let agent = scene.agent.as_ref().unwrap();
    agent.wait_for("its release", WITHIN, state("released")).unwrap();
    assert_eq!(agent.reader(), None, "nothing holds it");
    assert_eq!(scene.wait_for_events(1)[0]["event"], "gpu.driver.unbind");
    let agent = scene.agent.as_ref().unwrap();
    agent.wait_for("the device again", 2 * WITHIN, state("ok")).unwrap();
}

#[test]
fn a_storm_is_told_in_ten_lines_and_counted_whole() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    let pid = scene.worker.pid();
    for _ in 0..200 {
        let line = format!("NVRM: Xid (PCI:{PCI}): 94, pid={pid}, name=worker, Contained: SM.");
        scene.kmsg.say(&line).unwrap();
    }
    scene.wait_for_xids(94, 200);
    assert_eq!(scene.wait_for_events(10).len(), 10);
}

#[test]
fn old_records_are_told_once_with_their_own_time_and_not_by_the_next_agent() {
    let line = |code| format!("NVRM: Xid (PCI:{PCI}): {code}, Ch 00000008");
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |kmsg, _| {
        kmsg.said(&line(31), Duration::from_hours(1)).unwrap();
        kmsg.said(&line(43), Duration::from_mins(5)).unwrap();
    });
    let told = scene.wait_for_events(1);
    assert_eq!(told[0]["attributes"]["gpu.xid.code"], 43, "an hour ago is history");
    let told_at = text(&told[0]["time"]);
    assert!(told_at < text(&told[0]["observed"]), "{told:#?}");
    scene.restart();
    scene.kmsg.say(&line(13)).unwrap();
    let codes = |events: &[Value]| {
        let codes = events.iter().map(|event| event["attributes"]["gpu.xid.code"].clone());
        codes.filter_map(|code| code.as_u64()).collect::<Vec<_>>()
    };
    let told = until(WITHIN, || Some(scene.events()).filter(|told| codes(told).contains(&13)));
    let told = told.expect("the new record");
    assert_eq!(codes(&told), [43, 13], "{told:#?}");
}

#[test]
fn a_killed_process_on_a_device_is_told_with_its_pod_and_others_are_not() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    let pid = scene.worker.pid();
    let killed = |pid: u32| {
        format!(
            "Memory cgroup out of memory: Killed process {pid} (worker) total-vm:1kB, anon-rss:1kB"
        )
    };
    scene.kmsg.say(&killed(std::process::id())).unwrap();
    scene.kmsg.say(&killed(pid)).unwrap();
    let told = scene.wait_for_events(1);
    let [event] = &told[..] else { panic!("one event: {told:#?}") };
    assert_eq!(event["event"], "gpu.process.oom_kill");
    for (key, value) in scene.of_the_pod() {
        assert_eq!(text(&event["attributes"][key]), value, "{event:#}");
    }
}

#[test]
fn a_killed_process_that_the_agent_never_saw_is_told_with_the_pod_whose_cgroup_the_kernel_names() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    // No process can have these numbers.
    let (stranger, loader) = (4_194_305, 4_194_306);
    let killed = |pid: u32, cgroup: &str| {
        format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
             oom_memcg={cgroup},task_memcg={cgroup},task=loader,pid={pid},uid=0"
        )
    };
    scene.kmsg.say(&killed(stranger, "/system.slice/other.service")).unwrap();
    scene.kmsg.say(&killed(loader, &scene.cgroup)).unwrap();
    let told = scene.wait_for_events(1);
    let [event] = &told[..] else { panic!("one event: {told:#?}") };
    let attributes = &event["attributes"];
    assert_eq!(event["event"], "gpu.process.oom_kill");
    assert_eq!(attributes["process.pid"], loader, "{event:#}");
    assert_eq!(attributes["process.executable.name"], "loader", "{event:#}");
    for (key, value) in scene.of_the_pod().into_iter().filter(|(key, _)| *key != "process.pid") {
        assert_eq!(text(&attributes[key]), value, "{event:#}");
    }
}

#[test]
fn a_device_that_the_driver_says_it_loses_is_let_go_of_without_the_kernel_log() {
    let scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    scene.watching();
    // The device's own events end the wait behind which the system's are looked at.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let now = since - scene.nvml.epoch().unwrap();
    let happens = format!(
        "\n[[system_event]]\ndevice = 0\nat = {now}\nkind = 1\n\
         [[event]]\ndevice = 1\nkind = 256\n"
    );
    scene.nvml.edit(|text| text + &happens).unwrap();
    let released = |who: &Value| (who["devices"][0]["state"] == "released").then_some(());
    let agent = scene.agent.as_ref().unwrap();
    agent.wait_for("its release", WITHIN, released).unwrap();
    assert_eq!(agent.reader(), None, "nothing holds it");
    let unbound = || scene.events().into_iter().find(|told| told["event"] == "gpu.driver.unbind");
    let event = until(WITHIN, unbound).unwrap_or_else(|| panic!("{:#?}", scene.events()));
    assert_eq!(event["attributes"]["gpuwho.event.source"], "nvml", "{event:#}");
    assert_eq!(event["attributes"]["gpu.uuid"], UUID, "{event:#}");
    for (key, value) in scene.of_the_pod() {
        assert_eq!(text(&event["attributes"][key]), value, "{event:#}");
    }
}

#[test]
fn a_process_that_has_ended_is_told_once_with_its_account_where_the_driver_keeps_them() {
    let scene = Scene::new(or_skip!(Stage::new()), None, |_, nvml| {
        nvml.edit(|text| text + "\n[device.modes]\naccounting = true\n").unwrap();
    });
    let peak = |point: &Value| point["metric"] == "gpu.process.memory.peak";
    until(WITHIN, || scene.lines("metric").iter().any(peak).then_some(())).expect("accounts");
    // The listed one goes; another, on no list that was read, had come and gone before.
    let brief = "\n[[device.process]]\npid = \"4194306\"\nmemory = 4096\nsm = 7\nfrom = 0.25\nuntil = 0.75\n";
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let until_now = format!("[[device.process]]\nuntil = {}\n", now - scene.nvml.epoch().unwrap());
    scene.nvml.edit(|text| text.replace("[[device.process]]\n", &until_now) + brief).unwrap();
    let ended = |pid: u32, gpu: &str| {
        let told = scene.lines("event").into_iter().filter(|line| {
            let attributes = &line["attributes"];
            line["event"] == "gpu.process.ended"
                && attributes["process.pid"] == pid
                && attributes["gpu.index"] == gpu
        });
        told.collect::<Vec<_>>()
    };
    let pid = scene.worker.pid();
    let both = || {
        let (listed, brief) = (ended(pid, "0"), ended(4_194_306, "7"));
        (!listed.is_empty() && !brief.is_empty()).then_some((listed, brief))
    };
    let (listed, brief) =
        until(WITHIN, both).unwrap_or_else(|| panic!("{:#?}", scene.lines("event")));
    let ([listed], [brief]) = (&listed[..], &brief[..]) else { panic!("{listed:#?} {brief:#?}") };
    let attributes = &listed["attributes"];
    for (key, value) in scene.of_the_pod() {
        assert_eq!(text(&attributes[key]), value, "{listed:#}");
    }
    let truth = scene.nvml.truth().unwrap();
    let process = truth.device(0).unwrap().processes().next().unwrap();
    let at_end = |curve| process.value(curve, 0.0);
    let memory = at_end(process.group.memory.as_ref().unwrap());
    assert_eq!(attributes["gpu.process.memory.peak"].as_f64(), Some(memory), "{listed:#}");
    let busy = at_end(&process.group.sm) / 100.0;
    assert_eq!(attributes["gpu.process.lifetime.utilization"].as_f64(), Some(busy), "{listed:#}");
    assert!(attributes["gpu.process.lifetime.duration"].as_f64() > Some(0.0), "{listed:#}");
    let attributes = &brief["attributes"];
    assert_eq!(attributes["gpu.process.lifetime.duration"], 0.5, "{brief:#}");
    assert_eq!(attributes["gpu.process.memory.peak"], 4096, "{brief:#}");
    assert_eq!(attributes["gpu.process.lifetime.utilization"], 0.07, "{brief:#}");
    // Ten at most of other events are told in a minute; each account is its own.
    let all = || (0..8).all(|gpu| ended(4_194_306, &gpu.to_string()).len() == 1).then_some(());
    until(WITHIN, all).unwrap_or_else(|| panic!("{:#?}", scene.lines("event")));
}

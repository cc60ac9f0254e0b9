//! What NVIDIA's library says happens: events of devices and of the system, and accounts of processes.

use super::scene::{Scene, text};
use super::{PCI, UUID, WITHIN};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::kmsg::Kmsg;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use nvidia_ml::counts;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the child waits for an event.
const TIMEOUT: Duration = Duration::from_secs(15);

#[test]
fn the_drivers_event_and_the_log_line_of_one_xid_are_one_event() {
    let mut scene = Scene::new(or_skip!(Stage::new()), None, |_, _| {});
    scene.watching();
    let happens = "\n[[event]]\ndevice = 0\ndata = 79\n";
    let scenario = fs::read_to_string(scene.nvml.scenario()).unwrap();
    fs::write(scene.nvml.scenario(), scenario + happens).unwrap();
    let line = format!("NVRM: Xid (PCI:{PCI}): 79, GPU has fallen off the bus.");
    scene.kmsg.write_line(&line).unwrap();
    let reported = scene.wait_for_events(1);
    assert_eq!(reported[0]["attributes"]["gpuwho.event.source"], "nvml+kmsg", "{reported:#?}");
    assert_eq!(reported[0]["body"], line);
    for (key, value) in scene.of_the_pod() {
        assert_eq!(text(&reported[0]["attributes"][key]), value, "{reported:#?}");
    }
    scene.wait_for_xids(79, 1);
    assert_eq!(scene.events().len(), 1);
}

#[test]
fn what_the_library_prints_is_no_event_and_costs_none() {
    let scene = Scene::new(or_skip!(Stage::new()), None, |_, nvml| {
        let prints = "\n[[failure]]\ncall = \"nvmlDeviceGetUtilizationRates\"\n\
                      prints = \"WARNING: infoROM is corrupted at gpu\"\n";
        nvml.edit(|text| text + prints).unwrap();
    });
    scene.watching();
    scene.nvml.edit(|text| text + "\n[[event]]\ndevice = 0\ndata = 79\n").unwrap();
    let reported = scene.wait_for_events(1);
    assert_eq!(reported[0]["attributes"]["gpuwho.event.source"], "nvml", "{reported:#?}");
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
    let unbound =
        || scene.events().into_iter().find(|reported| reported["event"] == "gpu.driver.unbind");
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
        let reported = scene.lines("event").into_iter().filter(|line| {
            let attributes = &line["attributes"];
            line["event"] == "gpu.process.ended"
                && attributes["process.pid"] == pid
                && attributes["gpu.index"] == gpu
        });
        reported.collect::<Vec<_>>()
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

#[test]
fn an_idle_wait_for_events_is_one_call_and_one_look_every_fifteen_seconds() {
    let mut path = PathBuf::new();
    let scene = Scene::new(or_skip!(Stage::new()), None, |_, nvml| path = nvml.count_calls());
    scene.watching();
    let both = || {
        let counts = counts::read(&path).unwrap();
        let calls = |name: &str| counts.get(name).map_or(0, |count| count.calls);
        (calls("nvmlEventSetWait_v2"), calls("nvmlSystemEventSetWait"))
    };
    // The first wait, which does not wait, has come back.
    until(WITHIN, || (both().1 >= 1).then_some(())).expect("a look");
    let (begun, first) = (Instant::now(), both());
    let last = until(WITHIN, || Some(both()).filter(|last| last.1 >= first.1 + 2));
    let (last, took) = (last.expect("more waits"), begun.elapsed());
    // What was under way has ended at any time, the others have lasted.
    assert!(took >= TIMEOUT, "{first:?} to {last:?} in {took:?}");
    // A look may have begun between the two counts.
    assert!((last.0 - first.0).abs_diff(last.1 - first.1) <= 1, "{first:?} to {last:?}");
}

#[test]
fn an_old_driver_without_system_events_tells_what_happens_to_its_devices() {
    let stage = or_skip!(Stage::new());
    let nvml = FakeNvml::install(stage.folder(), "old-driver").unwrap().from_now();
    let file = stage.folder().join("points.jsonl");
    let config = Config {
        interval: Some("500ms".to_owned()),
        kmsg: Some(Kmsg::new(stage.folder()).unwrap().path()),
        file: Some(file.clone()),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    let is_watching = |who: &Value| {
        let mut sources = who["sources"].as_array()?.iter();
        sources.find(|s| s["name"] == "nvml_events" && s["state"] == "ready").map(|_| ())
    };
    agent.wait_for("the driver's events", WITHIN, is_watching).unwrap();
    nvml.edit(|text| text + "\n[[event]]\ndevice = 1\ndata = 79\n").unwrap();
    let reported = || {
        let text = fs::read_to_string(&file).ok()?;
        let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["event"] == "gpu.xid")
    };
    let xid = until(WITHIN, reported).expect("the XID");
    assert_eq!(xid["attributes"]["gpu.index"], "1", "{xid:#}");
}

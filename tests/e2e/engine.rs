//! Inference engines: found in their pods, read by their pages, and joined to owners and devices.

mod real;

use crate::fixture::TRAINER;
use crate::points::{ALONE, WatchedAgent, expected, words};
use gpuwho_tests::agent::Config;
use gpuwho_tests::engine::serve::{GENERATED, Mode, PROMPT, recorded};
use gpuwho_tests::engine::{EngineSpec, FakeEngine};
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{Group, PodSpec, Stage};
use gpuwho_tests::worker::Worker;
use serde_json::Value;
use std::fs;

const GENERATED_TOKENS: &str = "inference.tokens.generated";

fn watch(stage: &Stage, more: &str) -> WatchedAgent {
    let more = format!("{ALONE}{more}");
    let config = Config { pod_logs: Some(stage.pod_logs()), more, ..Config::default() };
    WatchedAgent::start(stage.folder(), "h100x8", config)
}

fn pod(stage: &mut Stage, name: &str) -> Group {
    stage.pod(&PodSpec { name, ..TRAINER }).unwrap()
}

/// The points of a metric in a pod, oldest first.
fn of_pod<'a>(points: &'a [Value], metric: &str, pod: &str) -> Vec<&'a Value> {
    let is_it =
        |point: &&Value| point["metric"] == metric && point["attributes"]["k8s.pod.name"] == pod;
    points.iter().filter(is_it).collect()
}

/// The last value of a metric in a pod.
fn value(points: &[Value], metric: &str, pod: &str) -> Option<f64> {
    of_pod(points, metric, pod).last()?["value"].as_f64()
}

/// Whether two whole numbers are the same.
fn is_whole(value: f64, total: f64) -> Option<()> {
    ((value - total).abs() < 0.5).then_some(())
}

/// Requests so far by what came of them.
fn requests(points: &[Value], outcome: &str) -> f64 {
    let is_it = |point: &&Value| {
        point["metric"] == "gpuwho.engine.requests"
            && point["attributes"]["gpuwho.engine.page.outcome"] == outcome
    };
    points.iter().rfind(is_it).and_then(|point| point["value"].as_f64()).unwrap_or(0.0)
}

#[test]
fn an_engine_is_found_in_its_pod_and_its_totals_are_exact() {
    let mut stage = or_skip!(Stage::new());
    let group = pod(&mut stage, "chat-0");
    let mut watched = watch(&stage, "");
    // The API server holds no device; two engine cores beside it hold three.
    let spec = EngineSpec { group: Some(&group), ..EngineSpec::default() };
    let mut engine = FakeEngine::start(&spec).unwrap();
    let workers = [&[2, 3][..], &[5]].map(|gpus| Worker::on(&group, gpus).unwrap());
    for (gpu, worker) in [(2, 0), (3, 0), (5, 1)] {
        watched.nvml.set_processes(gpu, &[Some(workers[worker].pid())]).unwrap();
    }
    let at_first = recorded("vllm:generation_tokens_total{").unwrap();
    watched.wait("the recorded total", |points| {
        is_whole(value(points, GENERATED_TOKENS, "chat-0")?, at_first)
    });
    engine.work(7).unwrap();
    engine.work(4).unwrap();
    for (metric, name, each) in [
        (GENERATED_TOKENS, "vllm:generation_tokens_total{", GENERATED),
        ("inference.tokens.prompt", "vllm:prompt_tokens_total{", PROMPT),
    ] {
        let total = recorded(name).unwrap() + (11 * each) as f64;
        watched.wait(metric, |points| is_whole(value(points, metric, "chat-0")?, total));
    }
    let point = watched.wait("a point with a version", |points| {
        let point = of_pod(points, GENERATED_TOKENS, "chat-0").last().copied().cloned()?;
        point["attributes"]["gpuwho.engine.version"].is_string().then_some(point)
    });
    let starts = ["k8s.namespace", "k8s.pod.name", "k8s.container", "gpuwho.engine", "server.port"];
    let wanted = expected([
        ("k8s.namespace.name", "research"),
        ("k8s.pod.name", "chat-0"),
        ("k8s.container.name", "train"),
        ("gpuwho.engine.name", "vllm"),
        ("gpuwho.engine.version", "0.32.0"),
        ("server.port", "8000"),
    ]);
    assert_eq!(words(&point, &starts), wanted, "{point:#}");
    // One info series for each device.
    watched.wait("the engine's devices", |points| {
        let all = of_pod(points, "gpuwho.engine.info", "chat-0");
        let on = |gpu: &str| all.iter().any(|point| point["attributes"]["gpu.index"] == gpu);
        ["2", "3", "5"].into_iter().all(on).then_some(())
    });
    let elsewhere = of_pod(watched.points(), "gpuwho.engine.info", "chat-0").into_iter();
    let elsewhere = elsewhere.map(|point| point["attributes"]["gpu.index"].as_str().unwrap());
    let elsewhere: Vec<_> = elsewhere.filter(|gpu| !["2", "3", "5"].contains(gpu)).collect();
    assert_eq!(elsewhere, Vec::<&str>::new());
    let who = watched.who();
    let shown = &who["engines"][0];
    assert_eq!((&shown["pod"], &shown["engine"]), (&"chat-0".into(), &"vllm".into()), "{shown:#}");
    assert_eq!((&shown["running"], &shown["waiting"]), (&16.into(), &23.into()), "{shown:#}");
    assert!(shown["tokens_per_second"].is_number(), "{shown:#}");
    // Whatever agents of other tests have asked as well: none has asked another port.
    let asked = engine.asked().unwrap();
    assert!(asked.pages > 0 && asked.others > 0, "{asked:?}");
    assert_eq!((asked.strange_connections, asked.strange_bytes), (0, 0));
    // Its series end with it.
    drop(engine);
    watched.wait("the end of its series", |points| {
        let last = of_pod(points, GENERATED_TOKENS, "chat-0").last().copied()?;
        (last["ended"] == true).then_some(())
    });
}

#[test]
fn engines_in_mig_instances_of_one_device_are_joined_each_to_its_own() {
    let mut stage = or_skip!(Stage::new());
    let names = ["chat-0", "chat-1"];
    let groups = names.map(|name| pod(&mut stage, name));
    let config = Config { pod_logs: Some(stage.pod_logs()), more: ALONE.into(), ..<_>::default() };
    let mut watched = WatchedAgent::start(stage.folder(), "h100-mig", config);
    let engines = groups.each_ref().map(|group| {
        let spec = EngineSpec { group: Some(group), ..EngineSpec::default() };
        (FakeEngine::start(&spec).unwrap(), Worker::on(group, &[0]).unwrap())
    });
    let workers = engines.each_ref().map(|(_, worker)| Some(worker.pid()));
    watched.nvml.set_processes(0, &workers).unwrap();
    let instances = names.map(|name| {
        watched.wait("the engine's instance", |points| {
            let infos = of_pod(points, "gpuwho.engine.info", name);
            let mut instances = infos.iter().map(|info| &info["attributes"]["gpu.mig.uuid"]);
            instances.find_map(Value::as_str).map(str::to_owned)
        })
    });
    assert_ne!(instances[0], instances[1]);
    for (name, mine) in names.iter().zip(&instances) {
        for info in of_pod(watched.points(), "gpuwho.engine.info", name) {
            let on = &info["attributes"]["gpu.mig.uuid"];
            assert!(on.is_null() || on == mine.as_str(), "{info:#}");
        }
    }
}

#[test]
fn what_no_engine_is_is_never_asked() {
    let mut stage = or_skip!(Stage::new());
    let (engines, strange) = (pod(&mut stage, "chat-0"), pod(&mut stage, "train-0"));
    let mut watched = watch(&stage, "");
    // On a port that it was not given and that is not its default.
    let spec =
        EngineSpec { group: Some(&engines), gpus: &[1], port: 29_500, ..EngineSpec::default() };
    let mut elsewhere = FakeEngine::start(&spec).unwrap();
    // In a container in which nobody holds a device.
    let spec = EngineSpec { group: Some(&strange), ..EngineSpec::default() };
    let mut idle = FakeEngine::start(&spec).unwrap();
    // One that came later is read: those before would be, too.
    let later = pod(&mut stage, "chat-1");
    let spec = EngineSpec { group: Some(&later), gpus: &[4], ..EngineSpec::default() };
    let _engine = FakeEngine::start(&spec).unwrap();
    watched.wait("the engine that came last", |points| value(points, GENERATED_TOKENS, "chat-1"));
    watched.wait_for_readings(3);
    for engine in [&mut elsewhere, &mut idle] {
        let asked = engine.asked().unwrap();
        let all = [asked.pages, asked.others, asked.strange_connections, asked.strange_bytes];
        assert_eq!(all, [0; 4]);
    }
}

#[test]
fn unkind_engines_cost_themselves_alone() {
    /// Beyond what the agent has before: the largest page and its like.
    const MAX_MEMORY: u64 = 32 << 20;
    let mut stage = or_skip!(Stage::new());
    let good = pod(&mut stage, "chat-0");
    // A busy machine needs a moment for the largest page.
    let mut watched = watch(&stage, "[engines]\ninterval = \"2s\"\n");
    let spec = EngineSpec { group: Some(&good), gpus: &[0], ..EngineSpec::default() };
    let mut engine = FakeEngine::start(&spec).unwrap();
    watched.wait("the good engine", |points| value(points, GENERATED_TOKENS, "chat-0"));
    let pid = watched.agent.pid();
    // The most is from now on what it has now (proc_pid_clear_refs(5)).
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    let before = peak(pid);
    let unkind: Vec<FakeEngine> = (1..)
        .zip(Mode::ALL.into_iter().filter(|mode| *mode != Mode::Page))
        .map(|(gpu, mode)| {
            let group = pod(&mut stage, mode.as_str());
            let spec =
                EngineSpec { group: Some(&group), gpus: &[gpu], mode, ..EngineSpec::default() };
            FakeEngine::start(&spec).unwrap()
        })
        .collect();
    // Redirect, gzip, HTML and another protocol are refused, each more than once.
    for (outcome, times) in [("late", 2.0), ("too_large", 2.0), ("refused", 8.0)] {
        watched.wait(outcome, |points| (requests(points, outcome) >= times).then_some(()));
    }
    engine.work(3).unwrap();
    let total = recorded("vllm:generation_tokens_total{").unwrap() + (3 * GENERATED) as f64;
    watched.wait("the good engine's total", |points| {
        is_whole(value(points, GENERATED_TOKENS, "chat-0")?, total)
    });
    let grown = peak(pid).saturating_sub(before);
    assert!(grown < MAX_MEMORY, "{grown} bytes more");
    watched.wait_for_source("engines", "degraded", "engines are read; ");
    let ups = |pod: &str, points: &[Value]| value(points, "gpuwho.engine.up", pod);
    let points = watched.points();
    assert_eq!(ups("chat-0", points), Some(1.0));
    for mode in Mode::ALL.into_iter().filter(|mode| *mode != Mode::Page) {
        assert_eq!(ups(mode.as_str(), points), Some(0.0), "{mode:?}");
        assert_eq!(value(points, GENERATED_TOKENS, mode.as_str()), None, "{mode:?}");
    }
    drop(unkind);
    watched.wait_for_source("engines", "ready", "");
}

/// The most memory the process has had, in bytes.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

//! Real vLLM, SGLang and Triton on the CPU (`cargo xtask engines`): found without configuration, and
//! the totals that a receiver gets are what the client has counted.

use super::{of_pod, pod, watch};
use crate::points::WatchedAgent;
use gpuwho_tests::engine::real::{Real, RealEngine, installed};
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use serde_json::Value;
use std::time::Duration;

/// Requests that the client sends.
const REQUESTS: u32 = 200;
/// The device that the engine holds.
const GPU: u32 = 3;
/// For an engine on two busy processors to answer everything, and to count it.
const COUNTED_WITHIN: Duration = Duration::from_mins(5);

/// A metric, the attribute that its series must have, and what the client calls its total.
type Compared<'a> = (&'a str, Option<(&'a str, &'a str)>, &'a str);

/// The sum of the last values of a metric's series, of those with this attribute where one is named.
fn total(points: &[Value], metric: &str, with: Option<(&str, &str)>) -> Option<f64> {
    let mut last = std::collections::BTreeMap::new();
    for point in of_pod(points, metric, "real-0") {
        if with.is_none_or(|(key, value)| point["attributes"][key] == value) {
            // A histogram's number of observations.
            let value = point["value"].as_f64().or_else(|| point["value"]["count"].as_f64());
            last.insert(point["attributes"].to_string(), value?);
        }
    }
    (!last.is_empty()).then(|| last.values().sum())
}

/// Starts an engine, drives it, and compares these metrics with what the client has counted.
fn totals_are_exact(which: Real, compared: &[Compared<'_>]) -> Option<(WatchedAgent, Stage)> {
    if let Err(lack) = installed() {
        println!("skipped: needs {lack}");
        return None;
    }
    let mut stage = Stage::new().unwrap();
    let group = pod(&mut stage, "real-0");
    let log = stage.folder().join("engine.log");
    let mut engine = RealEngine::start(which, (&group, &[GPU]), &log, REQUESTS).unwrap();
    // A busy machine needs a moment for a page; an engine that is there already is found, too.
    let mut watched = watch(&stage, "[engines]\ninterval = \"2s\"\n");
    watched.nvml.set_processes(GPU, &[Some(engine.pid())]).unwrap();
    watched.wait("the engine's page", |points| {
        let ups = of_pod(points, "gpuwho.engine.up", "real-0");
        ups.iter().any(|point| point["value"] == 1).then_some(())
    });
    let counted = engine.drive().unwrap();
    println!("{}: the client counted {counted}", which.name());
    let agrees = |points: &[Value]| {
        let same = compared
            .iter()
            .all(|(metric, with, count)| total(points, metric, *with) == counted[*count].as_f64());
        same.then_some(())
    };
    let same = until(COUNTED_WITHIN, || agrees(watched.points()));
    for (metric, with, count) in compared {
        let received = total(watched.points(), metric, *with);
        println!(
            "{}: {metric} {with:?} {received:?}, the client's {count} {}",
            which.name(),
            counted[*count]
        );
    }
    assert!(same.is_some(), "totals differ");
    let info = watched.wait("the engine's device", |points| {
        of_pod(points, "gpuwho.engine.info", "real-0").last().map(|point| (*point).clone())
    });
    assert_eq!(info["attributes"]["gpu.index"], GPU.to_string(), "{info:#}");
    println!("{}: {}", which.name(), info["attributes"]);
    let up = of_pod(watched.points(), "gpuwho.engine.families", "real-0");
    for point in up.iter().rev().take(2) {
        println!("{}: families {} {}", which.name(), point["attributes"], point["value"]);
    }
    println!("{}: doctor {:?}", which.name(), watched.doctor().get("engine"));
    // It is there until here.
    drop(engine);
    Some((watched, stage))
}

#[test]
fn totals_of_vllm_are_exact() {
    let stop = Some(("inference.finish_reason", "length"));
    let compared = [
        ("inference.requests.finished", stop, "success"),
        ("inference.tokens.prompt", None, "prompt"),
        ("inference.tokens.generated", None, "generated"),
        ("gen_ai.server.request.duration", None, "success"),
        ("gen_ai.server.time_to_first_token", None, "success"),
    ];
    totals_are_exact(Real::Vllm, &compared);
}

#[test]
fn totals_of_sglang_are_exact() {
    let compared = [
        ("inference.requests.finished", Some(("inference.finish_reason", "finished")), "success"),
        ("inference.tokens.prompt", None, "prompt"),
        ("inference.tokens.generated", None, "generated"),
        ("gen_ai.server.request.duration", None, "success"),
    ];
    totals_are_exact(Real::Sglang, &compared);
}

#[test]
fn totals_of_triton_are_exact() {
    let by = |reason| Some(("inference.finish_reason", reason));
    let compared = [
        ("inference.requests.finished", by("success"), "success"),
        ("inference.requests.finished", by("error"), "failed"),
        ("triton.inferences", None, "inferences"),
    ];
    totals_are_exact(Real::Triton, &compared);
}

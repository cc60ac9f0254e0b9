//! A program that writes where nothing is: the driver ends it with XID 31, and the agent tells of
//! it with the program as the victim.

use super::{Bench, Checked};
use crate::load::{LoadError, Running};
use crate::report::Row;
use gpuwho_tests::until::until;
use serde_json::Value;
use std::time::Duration;

const CHECK: &str = "XID of a faulty program";
/// The event comes within milliseconds; the batch that carries it within a tick.
const TOLD_WITHIN: Duration = Duration::from_secs(15);
/// Memory page fault of an engine.
const FAULT: u64 = 31;

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    let running = Running::start(&["fault"])?;
    let pid = running.pid();
    let ended = match running.stop() {
        Ok(_) => return Ok(vec![Row::skip(CHECK, "the faulty kernel did not fail here")]),
        Err(LoadError::Ended(text)) => text,
        Err(error) => return Err(error.into()),
    };
    let reported = until(TOLD_WITHIN, || {
        let events = bench.watched.events().ok()?;
        events
            .into_iter()
            .find(|event| attribute(event, "gpu.xid.code").and_then(Value::as_u64) == Some(FAULT))
    });
    let Some(event) = reported else {
        let seen =
            format!("no event within {TOLD_WITHIN:?} ({ended}); needs /dev/kmsg or NVML events");
        return Ok(vec![Row::fail(CHECK, seen)]);
    };
    let victim = attribute(&event, "process.pid").and_then(Value::as_u64);
    let body = event.get("body").and_then(Value::as_str).unwrap_or_default();
    let source =
        attribute(&event, "gpuwho.event.source").and_then(Value::as_str).unwrap_or_default();
    let seen = format!("{body} (from {source}); program {pid}, victim {victim:?}\n{ended}");
    Ok(vec![Row::judged(CHECK, victim == Some(u64::from(pid)), seen)])
}

fn attribute<'a>(event: &'a Value, name: &str) -> Option<&'a Value> {
    event.get("attributes")?.get(name)
}

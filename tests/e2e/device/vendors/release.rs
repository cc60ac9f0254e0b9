//! Gaudi's devices before a driver upgrade and after one was taken out: what `device::release` and
//! `device::missing` say of NVIDIA's.

use super::{Host, VENDORS, WITHIN};
use crate::device::release::below;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::or_skip;
use gpuwho_tests::program;
use gpuwho_tests::stage::Stage;
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// A second, and the start of the command on a busy machine.
const SOON: Duration = Duration::from_secs(5);
/// The second device and its PCI address.
const SECOND: &str = "01P4-HL3090A0-18-U4V193-22-07-01";
const ADDRESS: &str = "0000:19:00.0";

fn start(stage: &Stage, host: &Host) -> Agent {
    let own = host.config(stage);
    let more = format!("{}retry = \"1s\"\n", own.more);
    Agent::start(stage.folder(), &Config { more, ..own }, None).unwrap()
}

/// Waits for a state of a device; gives what the agent says of it.
fn wait(agent: &Agent, host: &Host, uuid: &str, state: &str) -> Value {
    let in_state = |who: &Value| {
        host.play();
        let mut devices = who["devices"].as_array()?.iter();
        devices.find(|one| one["uuid"] == uuid && one["state"] == state).cloned()
    };
    let seen = agent.wait_for(&format!("{uuid} {state}"), WITHIN, in_state);
    seen.unwrap_or_else(|error| panic!("{error} {:#?} {:#?}", agent.who(), agent.log()))
}

fn gpuwho(agent: &Agent, words: &[&str]) -> String {
    let mut command = Command::new(program::gpuwho().unwrap());
    let output = command.args(words).arg("--socket").arg(agent.socket()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_released_gaudi_is_held_by_nobody_and_comes_back_by_itself() {
    let stage = or_skip!(Stage::new());
    let host = Host::new(&stage);
    let agent = start(&stage, &host);
    let held = || {
        let of = |process: std::path::PathBuf| fs::read_to_string(process.join("maps")).ok();
        let maps = below(agent.pid()).into_iter().filter_map(of);
        maps.filter(|maps| maps.contains("libhlml.so")).count()
    };
    wait(&agent, &host, SECOND, "ok");
    assert_eq!(held(), 1, "its reader has loaded the library");
    let begun = Instant::now();
    let said = gpuwho(&agent, &["release", "--for", "3s"]);
    let took = begun.elapsed();
    assert_eq!(held(), 0);
    assert!(said.contains("devices released") && took < SOON, "{took:?}: {said}");
    wait(&agent, &host, SECOND, "released");
    assert_eq!(held(), 0, "released means that it stays so");
    wait(&agent, &host, SECOND, "ok");
    assert!(begun.elapsed() >= Duration::from_secs(3));
}

#[test]
fn a_gaudi_that_was_taken_out_is_missing_also_for_the_next_agent() {
    let stage = or_skip!(Stage::new());
    let host = Host::new(&stage);
    let agent = start(&stage, &host);
    wait(&agent, &host, SECOND, "ok");
    for folder in ["devices", "drivers/habanalabs"] {
        fs::remove_file(host.root.join("sys/bus/pci").join(folder).join(ADDRESS)).unwrap();
    }
    let first =
        host.answers().replace(&format!(" {ADDRESS}"), "").replace(&format!("|{ADDRESS}"), "");
    host.answer(&first);
    let seen = wait(&agent, &host, SECOND, "missing");
    assert!(seen["reason"].as_str().unwrap().contains(ADDRESS), "{seen:#}");
    drop(agent);
    let agent = start(&stage, &host);
    let seen = wait(&agent, &host, SECOND, "missing");
    assert_eq!(seen["model"], "Intel Gaudi HL-325L", "{seen:#}");
    let others = VENDORS.iter().filter(|(vendor, ..)| *vendor != "gaudi");
    for (vendor, ..) in others {
        let well = agent.wait_for(&format!("{vendor} to be well"), WITHIN, |who| {
            host.play();
            let mut all = who["devices"].as_array()?.iter().filter(|one| one["vendor"] == *vendor);
            all.all(|one| one["state"] == "ok").then_some(())
        });
        well.unwrap();
    }
    gpuwho(&agent, &["forget", SECOND]);
    let is_gone = |who: &Value| (!who.to_string().contains(SECOND)).then_some(());
    agent.wait_for("the device to be forgotten", WITHIN, is_gone).unwrap();
}

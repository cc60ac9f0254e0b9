//! What `cargo xtask run --scenario` shows of each vendor's hosts: every device with its model in the table,
//! and each vendor's state by `gpuwho doctor`, and why a device has no utilisation.

use gpuwho_devices::DEVICES;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::fakes::{FAKES, Host, load};
use gpuwho_tests::nvml::scenarios;
use gpuwho_tests::program;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Some starts of readers, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);

/// Vendors of which no file has the load, or none while nobody works.
const WITHOUT_LOAD: [&str; 3] = ["tenstorrent", "tpu", "neuron"];

/// Whether a scenario has a device of another vendor than NVIDIA.
fn has_others(name: &str) -> bool {
    let scenario = load(name).unwrap();
    FAKES.iter().any(|vendor| scenario.groups.iter().any(|group| group.vendor == vendor.name))
}

#[test]
fn every_scenario_shows_its_devices_and_each_vendors_state() {
    let others: Vec<_> = scenarios().into_iter().filter(|name| has_others(name)).collect();
    assert!(others.len() >= 13, "{others:?}");
    for name in others {
        shows(&name);
    }
}

fn shows(name: &str) {
    let folder = TempDir::new().unwrap();
    let host = Host::install(folder.path(), name).unwrap();
    let mut config = Config { interval: Some("500ms".to_owned()), ..Config::default() };
    host.configure(folder.path(), &mut config);
    let agent = Agent::start(folder.path(), &config, host.nvml()).unwrap();
    let scenario = load(name).unwrap();
    let count = scenario.devices().count();
    let all = |who: &Value| {
        host.play().unwrap();
        let devices = who["devices"].as_array()?;
        let is_whole = |device: &Value| device["state"] == "ok" && device["model"].is_string();
        (devices.len() == count && devices.iter().all(is_whole)).then(|| devices.clone())
    };
    let devices = agent.wait_for(&format!("{count} devices of {name}"), WITHIN, all);
    let devices = devices.unwrap_or_else(|error| panic!("{error} {:#?}", agent.log()));
    let ask = |words: &[&str]| {
        let mut command = Command::new(program::gpuwho().unwrap());
        command.args(words).arg("--socket").arg(agent.socket());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let (table, doctor) = (ask(&[]), ask(&["doctor", "--all"]));
    for device in devices {
        let (index, model) = (&device["index"], device["model"].as_str().unwrap());
        let says_why = |line: &str| line.contains(model) && line.contains("no utilization");
        if WITHOUT_LOAD.iter().any(|vendor| device["vendor"] == *vendor) {
            assert!(doctor.lines().any(says_why), "{name}: {index} {model}\n{doctor}");
        }
        let is_its = |line: &str| {
            // With its vendor where there are several.
            let vendor = format!("{}:", device["vendor"].as_str().unwrap_or_default());
            let name = line.trim_start();
            let name = name.strip_prefix(&vendor).unwrap_or(name);
            let rest = name.strip_prefix(&index.to_string());
            rest.is_some_and(|rest| rest.trim_start().starts_with(model) && rest.contains(" ok "))
        };
        assert!(table.lines().any(is_its), "{name}: {index} {model}\n{table}");
    }
    for vendor in DEVICES {
        let is_here = scenario.groups.iter().any(|group| group.vendor == vendor.name);
        let line = format!("{} ", vendor.name);
        let state = doctor.lines().find_map(|text| text.trim_start().strip_prefix(&line));
        let state = state.and_then(|rest| rest.split_whitespace().next());
        // One that is off is not asked for.
        let expected: &[_] = if is_here { &[Some("ok")] } else { &[Some("absent"), None] };
        assert!(expected.contains(&state), "{name}: {} {state:?}\n{doctor}", vendor.name);
    }
}

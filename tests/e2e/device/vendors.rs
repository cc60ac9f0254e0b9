//! One node with the devices of three vendors, Gaudi's by its library: what is read of them and whose
//! they are arrives at the real OpenTelemetry Collector, and a library that crashes takes nothing from
//! the others.

use crate::fixture::TRAINER;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, of};
use gpuwho_tests::fakes::{FAKES, load};
use gpuwho_tests::or_skip;
use gpuwho_tests::program;
use gpuwho_tests::stage::Stage;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::nodes::host_nodes;
use std::fs;
use std::time::Duration;

/// A few ticks and the starts of readers, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);
/// What the worker's script calls the first Gaudi.
const GAUDI: u32 = 1000;
/// What Gaudi's library answers.
const ANSWERS: &str = "devices 0000:09:00.0 0000:19:00.0
hlml_get_driver_version 1.24.2-abcdef0
hlml_device_get_uuid 01P4-HL3090A0-18-U4V193-22-07-00+
hlml_device_get_name HL-325L
hlml_device_get_serial AN50012345
hlml_device_get_utilization_rates 40+ 7
hlml_device_get_memory_info 136734310400 137438953472 704643072
hlml_device_get_power_usage 226000
hlml_device_get_total_energy_consumption 5500
hlml_device_get_temperature/0 36
hlml_device_get_temperature/3 4294967295
hlml_device_get_clock_info/0 1600
hlml_device_get_current_clocks_throttle_reasons 2
hlml_device_get_total_ecc_errors/1/0 3
hlml_device_get_replaced_rows/1 2
hlml_get_mac_addr_info 7 0
hlml_nic_get_link/0 1
hlml_nic_get_link/1 1
hlml_nic_get_link/2 0
hlml_nic_get_statistics rx_Octets 1000 rx_Pkts 5 tx_Octets 3000
";

fn arrived(points: &[ReceivedPoint], name: &str, attrs: &[(&str, &str)]) -> Vec<f64> {
    of(points, name, attrs).iter().filter_map(|point| point.number()).collect()
}

#[test]
fn three_vendors_values_and_owners_arrive_and_a_library_that_crashes_costs_only_itself() {
    let mut stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let root = stage.folder().join("host");
    let scenario = load("accelerators").unwrap();
    for name in ["gaudi", "tenstorrent", "tpu"] {
        let vendor = FAKES.iter().find(|vendor| vendor.name == name).unwrap();
        (vendor.install)(&root, scenario.clone().only(name)).unwrap();
    }
    let library = root.join("libhlml.so");
    fs::copy(program::fake_hlml().unwrap(), &library).unwrap();
    let answers = root.join("libhlml.answers");
    fs::write(&answers, ANSWERS).unwrap();
    let pod = stage.pod(&TRAINER).unwrap();
    let _worker = Worker::on(&pod, &[GAUDI]).unwrap();
    let nvidia = host_nodes(stage.folder()).unwrap();
    let accel = stage.folder().join("dev/accel/accel*").display().to_string();
    let config = Config {
        interval: Some("500ms".to_owned()),
        deadline: Some("5s"),
        pod_logs: Some(stage.pod_logs()),
        sys: Some(root.join("sys")),
        nodes: Some(vec![nvidia, accel]),
        otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
        more: format!(
            "[nvidia]\nlibrary = \"/nonexistent/libnvidia-ml.so.1\"\n\
             [gaudi]\nlibrary = \"{}\"\ndeadline = \"5s\"\n",
            library.display()
        ),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, None).unwrap();
    let first = [("gpu.uuid", "01P4-HL3090A0-18-U4V193-22-07-00")];
    let owned = [first[0], ("k8s.pod.name", "trainer-0")];
    let ready = |points: &[ReceivedPoint]| {
        let is_there =
            |name: &str, attrs: &[(&str, &str)]| !arrived(points, name, attrs).is_empty();
        let all = is_there("gpu.owner.processes", &owned)
            && is_there("gpu.interconnect.io", &first)
            && is_there("gpu.power", &[("gpu.vendor", "tenstorrent")])
            && is_there("gpu.pcie.link.width", &[("gpu.vendor", "tpu")]);
        all.then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, ready).unwrap();
    let points = points.unwrap_or_else(|| panic!("{:#?} {:#?}", agent.who(), agent.log()));
    for (name, attrs, expected) in [
        ("gpu.utilization", vec![first[0], ("gpu.task", "general")], 0.4),
        ("gpu.memory.usage", vec![first[0], ("gpu.memory.state", "used")], 704_643_072.0),
        ("gpu.power", vec![first[0]], 226.0),
        ("gpu.energy", vec![first[0]], 5.5),
        ("gpu.clock.speed", vec![first[0]], 1.6e9),
        ("gpu.temperature", vec![first[0]], 36.0),
        ("gpu.memory.remapped_rows", vec![first[0]], 2.0),
        ("gpu.interconnect.io", vec![first[0], ("network.io.direction", "receive")], 3003.0),
        ("gpu.power", vec![("gpu.uuid", "TT-00112233aabbcc01")], 93.0),
        ("gpu.pcie.link.width", vec![("gpu.uuid", "TPU-0000:81:00.0")], 16.0),
    ] {
        let found = arrived(&points, name, &attrs);
        let is_right = |found: &f64| (found - expected).abs() <= expected * 1e-9;
        assert!(!found.is_empty() && found.iter().all(is_right), "{name} {found:?}");
    }
    fs::write(
        &answers,
        format!("{ANSWERS}hlml_device_get_power_usage crash\n")
            .replace("hlml_device_get_power_usage 226000\n", ""),
    )
    .unwrap();
    let is_down = |who: &serde_json::Value| {
        let all = who["devices"].as_array().into_iter().flatten();
        let states = all.map(|device| {
            (device["vendor"].as_str().unwrap_or_default(), device["state"].as_str() == Some("ok"))
        });
        let states: Vec<_> = states.collect();
        let gaudi_is_down = states.iter().any(|state| *state == ("gaudi", false));
        gaudi_is_down.then(|| states.iter().filter(|state| state.1).count())
    };
    let others = agent.wait_for("a crash of Gaudi's library", WITHIN, is_down).unwrap();
    assert_eq!(others, 4, "the others' devices: {:#?}", agent.who());
    fs::write(&answers, ANSWERS).unwrap();
    let is_up = |who: &serde_json::Value| {
        let all = who["devices"].as_array()?;
        all.iter().all(|device| device["state"].as_str() == Some("ok")).then_some(())
    };
    agent.wait_for("every device to answer again", WITHIN, is_up).unwrap();
}

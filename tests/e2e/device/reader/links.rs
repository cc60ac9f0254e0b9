//! NVLink, links to the CPU, fabric and board against the scenarios' truth.

use super::rig::{Rig, Values};
use super::truth::links::{self as truth, grows, is_ours};
use gpuwho_model::catalog::attributes::{self as attr, AttrKey};
use std::collections::BTreeMap;

/// The values of a reading that are told in [`truth`].
fn ours(read: Values) -> Values {
    read.into_iter().filter(|((name, ..), _)| is_ours(name)).collect()
}

/// Reads a scenario until everything is read, and checks every value.
fn every_value_is_the_scenario_s(rig: &mut Rig) -> Values {
    // How many links there are is known after the first reading.
    rig.tick();
    let before = rig.seconds();
    let read = ours(rig.tick());
    let after = rig.seconds();
    let (least, most) = (truth::at(&rig.scenario(), before), truth::at(&rig.scenario(), after));
    let keys = |values: &Values| values.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&read), keys(&least));
    for (key, value) in &read {
        if grows(&key.0) {
            assert!((least[key]..=most[key]).contains(value), "{key:?}: {value}");
        } else {
            let close = (value - least[key]).abs() <= least[key].abs() * 1e-12;
            assert!(close, "{key:?}: {value} is not {}", least[key]);
        }
    }
    read
}

fn value(read: &Values, device: u32, name: &str, dim: &str) -> Option<f64> {
    read.get(&(name.to_owned(), device, 0, dim.to_owned())).copied()
}

#[test]
fn every_link_of_eight_h200_is_exact() {
    let mut rig = Rig::new("h200x8-nvlink");
    let read = every_value_is_the_scenario_s(&mut rig);
    // Once in plain figures: 3 + 4 × 100 + 5 flits with a wrong checksum on link 5 of device 4.
    assert_eq!(value(&read, 4, "gpu.nvlink.link.errors", "5,crc"), Some(408.0));
    assert_eq!(value(&read, 4, "gpu.nvlink.link.speed", "5"), Some(26.562e9));
    assert_eq!(value(&read, 2, "gpu.nvlink.links", "active"), Some(16.0));
    assert_eq!(value(&read, 2, "gpu.nvlink.link.active", "7"), Some(0.0));
    assert_eq!(value(&read, 2, "gpu.nvlink.link.io", "7,transmit"), None);
    assert_eq!(value(&read, 0, "gpu.video.latency", "encoder"), Some(0.0045));
    assert_eq!(value(&read, 0, "gpu.confidential_compute.memory", "unprotected"), None, "off");
}

#[test]
fn sums_that_the_driver_lacks_are_the_links_own() {
    for by_link in [true, false] {
        let mut rig =
            if by_link { Rig::new("h200x8-nvlink") } else { Rig::without_links("h200x8-nvlink") };
        // It counts recoveries in both ways, and none of them the newer way.
        rig.edit(|text| {
            text.replace("[device.nvlink.errors]\n", "[device.nvlink.errors]\nrecovered = 0\n")
                .replace("[device.nvlink]\n", "[device.nvlink]\nno_totals = true\n")
        });
        rig.tick();
        let read = ours(rig.tick());
        let expected = truth::at(&rig.scenario(), rig.seconds());
        for word in ["crc", "replay", "recovery"] {
            let key = ("gpu.nvlink.errors".to_owned(), 4, 0, word.to_owned());
            assert!(expected[&key] > 0.0, "{word}");
            assert_eq!(read.get(&key), expected.get(&key), "{word}, by link: {by_link}");
        }
        assert_eq!(value(&read, 4, "gpu.nvlink.errors", "crc_flit"), None);
    }
}

#[test]
fn every_link_and_the_fabric_of_a_gb200_tray_are_exact() {
    let mut rig = Rig::new("gb200");
    let read = every_value_is_the_scenario_s(&mut rig);
    assert_eq!(value(&read, 1, "gpu.nvlink.link.errors", "3,symbol"), Some(24.0));
    assert_eq!(value(&read, 0, "gpu.c2c.link.speed", "4"), Some(44.712e9));
    assert_eq!(value(&read, 2, "gpu.fabric.condition", "insufficient_nvlinks"), Some(1.0));
    assert_eq!(value(&read, 2, "gpu.recovery.action", "gpu_reset"), Some(1.0));
    assert_eq!(value(&read, 2, "gpu.inforom.valid", ""), Some(0.0));
    let protected = Some(193_986_560.0 * 1024.0);
    assert_eq!(value(&read, 0, "gpu.confidential_compute.memory", "protected"), protected);
}

#[test]
fn sixteen_devices_of_an_old_driver_are_exact() {
    let mut rig = Rig::new("v100x16");
    let read = every_value_is_the_scenario_s(&mut rig);
    assert_eq!(value(&read, 15, "gpu.nvlink.links", "active"), Some(6.0));
    assert_eq!(rig.inventory.all().len(), 16);
}

#[test]
fn what_a_link_carried_is_the_sum_of_its_rate() {
    let mut rig = Rig::new("h200x8-nvlink");
    let read = every_value_is_the_scenario_s(&mut rig);
    // 18 links of 1 GB/s and 10 MB/s more on each than on the one before, for 1,000 s and a bit.
    let sent = value(&read, 0, "gpu.nvlink.io", "transmit").unwrap() / rig.seconds();
    let rate = 18.0 * 1e9 + 153.0 * 1e7;
    assert!((sent / rate - 1.0).abs() < 0.01, "{sent} bytes a second, not {rate}");
    let raw = value(&read, 0, "gpu.nvlink.raw.io", "transmit").unwrap() / rig.seconds();
    assert!((raw / rate / 1.125 - 1.0).abs() < 0.01, "{raw} bytes a second");
}

#[test]
fn without_each_link_the_sums_stay_and_only_what_they_need_is_asked() {
    for (scenario, symbols) in [("h200x8-nvlink", None), ("gb200", Some("symbol"))] {
        let mut rig = Rig::without_links(scenario);
        rig.tick();
        let read = ours(rig.tick());
        let mut expected = truth::at(&rig.scenario(), rig.seconds());
        expected.retain(|(name, ..), _| !name.starts_with("gpu.nvlink.link."));
        let keys = |values: &Values| values.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&read), keys(&expected), "{scenario}");
        let steady = |values: &Values| {
            let all = values.clone().into_iter();
            all.filter(|((name, ..), _)| !grows(name)).collect::<Vec<_>>()
        };
        assert_eq!(steady(&read), steady(&expected), "{scenario}");
        if let Some(word) = symbols {
            assert!(value(&read, 1, "gpu.nvlink.errors", word) > Some(0.0));
        }
        // Speeds and bit error rates, which have no sum.
        assert_eq!([164, 220, 222].map(|field| rig.calls(&format!("field {field}"))), [0; 3]);
    }
}

#[test]
fn a_link_that_comes_back_is_counted_again() {
    let mut rig = Rig::new("h200x8-nvlink");
    rig.tick();
    let io = |read: &Values| value(read, 2, "gpu.nvlink.link.io", "7,receive");
    assert_eq!(io(&rig.tick()), None);
    rig.edit(|text| text.replace("device = 2\nlink = 7\n", "device = 2\nlink = 17\n"));
    let back = rig.until(|batch, rig| io(&rig.values(batch)));
    assert!(back > 0.0);
    let down = rig.until(|batch, rig| {
        let read = rig.values(batch);
        (value(&read, 2, "gpu.nvlink.link.active", "17") == Some(0.0)).then_some(read)
    });
    assert_eq!(value(&down, 2, "gpu.nvlink.link.speed", "17"), None);
}

/// What `gpu.info` says of a device, by attribute.
fn facts(rig: &Rig, device: u32) -> BTreeMap<&'static str, String> {
    let all = rig.inventory.all();
    let (_, info) = all.iter().find(|(_, info)| info.index == device).unwrap();
    let attributes = info.attributes();
    attributes.iter().map(|(key, value)| (key.name, value.to_string())).collect()
}

fn fact<'a>(facts: &'a BTreeMap<&'static str, String>, key: &AttrKey) -> Option<&'a str> {
    facts.get(key.name).map(String::as_str)
}

#[test]
fn what_a_board_is_is_on_its_info() {
    let mut rig = Rig::new("gb200");
    rig.tick();
    rig.tick();
    let known = facts(&rig, 1);
    let expected = [
        (&attr::GPU_VBIOS_VERSION, Some("97.00.B9.00.01")),
        (&attr::GPU_BOARD_PART, Some("699-2G548-1201-A10")),
        (&attr::GPU_GSP_VERSION, Some("580.95.05")),
        (&attr::GPU_INFOROM_IMAGE, Some("G548.0201.00.06")),
        (&attr::GPU_INFOROM_OEM, Some("2.1")),
        (&attr::GPU_INFOROM_ECC, Some("7.16")),
        (&attr::GPU_INFOROM_POWER, None),
        (&attr::GPU_INFOROM_CHECKSUM, Some("1d3a0001")),
        (&attr::GPU_MODULE_ID, Some("1")),
        (&attr::GPU_ADDRESSING_MODE, Some("ats")),
        (&attr::GPU_CHASSIS_SERIAL, Some("1820224020034")),
        (&attr::GPU_PLATFORM_SLOT, Some("11")),
        (&attr::GPU_PLATFORM_TRAY, Some("5")),
        (&attr::GPU_PLATFORM_HOST, Some("1")),
        (&attr::GPU_PLATFORM_PEER, Some("switch")),
        (&attr::GPU_NVLINK_VERSION, Some("5.0")),
        (&attr::GPU_FABRIC_CLUSTER, Some("5bd1e995-6b2f-4c0e-9c3f-7a1d20467b11")),
        (&attr::GPU_FABRIC_CLIQUE, Some("32766")),
        (&attr::GPU_CONFIDENTIAL_MODE, Some("devtools")),
        (&attr::GPU_CONFIDENTIAL_ENVIRONMENT, Some("production")),
    ];
    let found = expected.map(|(key, _)| (key.name, fact(&known, key)));
    assert_eq!(found, expected.map(|(key, text)| (key.name, text)));
}

#[test]
fn a_device_is_in_a_clique_when_its_registration_is_over() {
    let mut rig = Rig::at("gb200", 0.0);
    let read = rig.tick();
    assert_eq!(value(&read, 3, "gpu.fabric.status", "in_progress"), Some(1.0));
    assert_eq!(fact(&facts(&rig, 3), &attr::GPU_FABRIC_CLIQUE), None);
    assert_eq!(fact(&facts(&rig, 0), &attr::GPU_FABRIC_CLIQUE), Some("32766"));
    rig.until(|_, rig| {
        let known = facts(rig, 3);
        (fact(&known, &attr::GPU_FABRIC_CLIQUE) == Some("32767")).then_some(())
    });
}

#[test]
fn a_driver_with_the_older_structure_tells_of_the_fabric_without_a_summary() {
    let mut rig = Rig::new("gb200");
    rig.edit(|text| text.replace("clique = 32766\n", "clique = 32766\nversion = 2\n"));
    rig.tick();
    let read = rig.tick();
    assert_eq!(value(&read, 0, "gpu.fabric.status", "completed"), Some(1.0));
    assert_eq!(value(&read, 0, "gpu.fabric.condition", "route_unhealthy"), Some(0.0));
    assert_eq!(value(&read, 0, "gpu.fabric.health", "healthy"), None);
    // Both versions at the first reading, the one that is known from then on.
    assert_eq!(rig.calls("nvmlDeviceGetGpuFabricInfoV"), 4 + 3);
}

#[test]
fn a_fact_that_was_not_told_is_asked_for_again() {
    let mut rig = Rig::new("gb200");
    let failing = "[[failure]]\ncall = \"nvmlDeviceGetVbiosVersion\"\ncode = 999\n";
    rig.play_with("gb200", failing);
    rig.tick();
    assert_eq!(fact(&facts(&rig, 0), &attr::GPU_VBIOS_VERSION), None);
    rig.play("gb200");
    rig.tick();
    assert_eq!(fact(&facts(&rig, 0), &attr::GPU_VBIOS_VERSION), Some("97.00.B9.00.00"));
    let calls = rig.calls("nvmlDeviceGetVbiosVersion");
    rig.tick();
    assert_eq!(rig.calls("nvmlDeviceGetVbiosVersion"), calls, "what is known is not asked again");
}

#[test]
fn accounts_are_told_of_each_process_where_accounting_is_on() {
    let mut rig = Rig::new("gb200");
    let read = rig.tick();
    let of = |read: &Values, name: &str| -> BTreeMap<(u32, u32), f64> {
        let all = read.iter().filter(|((known, ..), _)| known == name);
        all.map(|((_, gpu, pid, _), value)| ((*gpu, *pid), *value)).collect()
    };
    let (mut peaks, mut busy) = (BTreeMap::new(), BTreeMap::new());
    for (gpu, slot) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let (device, number) = (f64::from(gpu), f64::from(slot));
        let on = (gpu, rig.pid(gpu, slot));
        let gib = f64::from(1 << 30);
        peaks.insert(on, 12.0 * gib + device * gib + number * gib / 2.0);
        busy.insert(on, (20.0 + 2.0 * device + 5.0 * number) / 100.0);
    }
    assert_eq!(of(&read, "gpu.process.memory.peak"), peaks);
    assert_eq!(of(&read, "gpu.process.lifetime.utilization"), busy);
    let again = rig.tick();
    assert_eq!(of(&again, "gpu.process.memory.peak"), peaks, "said again");
    // The second device has its sixth reading after four, the first after five.
    assert_eq!(rig.calls("nvmlDeviceGetAccountingStats"), 4, "and not asked again");
    rig.edit(|text| text.replace("accounting = true", "accounting = false"));
    rig.until(|batch, rig| {
        of(&rig.values(batch), "gpu.process.memory.peak").is_empty().then_some(())
    });
}

#[test]
fn no_account_is_asked_for_where_accounting_is_off() {
    let mut rig = Rig::new("h200x8-nvlink");
    rig.tick();
    assert_eq!(rig.calls("nvmlDeviceGetAccountingStats"), 0);
}

/// `Azure/azhpc-images` 506 and `NVIDIA/NVSentinel` 883: registered without a cluster, and no fabric at all, on
/// boards that are parts of a rack; an H200 has neither and needs neither.
#[test]
fn a_board_of_a_rack_without_its_fabric_is_said_to_be_unregistered() {
    let zero = "00000000000000000000000000000000";
    for (state, cluster, board, expected) in [
        (3, zero, "NVIDIA GB200", Some(1.0)),
        (0, zero, "NVIDIA GB200", Some(1.0)),
        (0, zero, "NVIDIA GB300", Some(1.0)),
        (3, "11112222333344445555666677778888", "NVIDIA GB200", Some(0.0)),
        (3, zero, "NVIDIA H200", None),
        (0, zero, "NVIDIA H100 80GB HBM3", None),
    ] {
        let mut rig = Rig::new("h200x8-nvlink");
        rig.edit(|text| {
            let text = text.replace("name = \"NVIDIA H200\"", &format!("name = \"{board}\""));
            text.replace(
                &format!("[device.fabric]\nstate = 3\ncluster = \"{zero}\""),
                &format!("[device.fabric]\nstate = {state}\ncluster = \"{cluster}\""),
            ) + "\n"
        });
        let read = rig.tick();
        let key = ("gpu.fabric.condition".to_owned(), 0, 0, "unregistered".to_owned());
        assert_eq!(read.get(&key).copied(), expected, "{state} {board} {cluster}");
    }
}

/// `Syllo/nvtop` 426: a GB10 is on the chip-to-chip link; NVML answers with generation 1 and one lane, or
/// with another bus.
#[test]
fn a_part_on_a_chip_to_chip_link_has_no_pcie_link() {
    let link = |edit: fn(&str) -> String| {
        let mut rig = Rig::new("h100x8");
        rig.edit(|text| edit(&text) + "\n");
        let read = rig.tick();
        let names = read
            .keys()
            .filter(|(name, device, ..)| *device == 0 && name.starts_with("gpu.pcie.link."));
        names.count()
    };
    assert_eq!(link(str::to_owned), 4);
    let placeholder = |text: &str| {
        text.replace("generation = [4, 5]", "generation = [1, 1]")
            .replace("width = [8, 16]", "width = [1, 1]")
    };
    assert_eq!(link(placeholder), 0);
    // NVML_BUS_TYPE_FPCI.
    assert_eq!(link(|text| text.replace("width = [8, 16]", "width = [8, 16]\nbus = 3")), 0);
}

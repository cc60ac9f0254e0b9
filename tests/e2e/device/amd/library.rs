//! `libamd_smi.so` beside the files: what a board has in no file arrives at the real OpenTelemetry Collector,
//! by each version of the library's structures; one that is missing, hangs, crashes or answers nonsense takes
//! nothing from the files.

use super::{NO_NVIDIA, WITHIN, config, line, run, tree};
use crate::device::reader::rig::shipped;
use crate::device::release::below;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::amd::{Tree, address};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, of};
use gpuwho_tests::stage::Stage;
use gpuwho_tests::until::until;
use gpuwho_tests::{or_skip, program};
use nvidia_ml::scenario::Scenario;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A device that the agent's table does not name: a Radeon RX 7900 XTX.
const NUMBER: &str = "0x744c";
/// What the agent calls it without the library.
const UNNAMED: &str = "AMD 0x744c";

/// Eight devices that have neither their name nor their numbers in a file, and a library that has.
struct Node {
    stage: Stage,
    scenario: Scenario,
    tree: Tree,
}

impl Node {
    fn new(stage: Stage) -> Self {
        let scenario = Scenario::load(&shipped("mi300x8")).unwrap();
        let tree = tree(&stage, &scenario);
        for device in scenario.devices() {
            let folder = tree.folder(&address(&device));
            for file in ["product_name", "serial_number", "vbios_version"] {
                fs::remove_file(folder.join(file)).unwrap();
            }
            fs::write(folder.join("device"), format!("{NUMBER}\n")).unwrap();
        }
        let node = Self { stage, scenario, tree };
        fs::copy(program::fake_amd_smi().unwrap(), node.library()).unwrap();
        node
    }

    fn library(&self) -> PathBuf {
        self.stage.folder().join("amd/libamd_smi.so")
    }

    /// The scenario's truth as a version of the library has it, and how its functions behave.
    fn answer(&self, version: u32, behaviours: &str) {
        let all = |text: &dyn Fn(u32) -> String| {
            self.scenario.devices().map(|device| text(device.index)).collect::<Vec<_>>()
        };
        let devices: Vec<_> = self.scenario.devices().map(|device| address(&device)).collect();
        let text = format!(
            "version {version}\ndevices {}\nmarket_name {}\noam_id {}\nmodel_number {}\n\
             product_serial {}\npart_number {}\n{behaviours}\n",
            devices.join(" "),
            all(&|i| format!("AMD Radeon {version} of {i}")).join("|"),
            all(&|i| i.to_string()).join("|"),
            all(&|i| format!("102-G30211-0{i}")).join("|"),
            all(&|i| format!("69240000000{i}")).join("|"),
            all(&|i| format!("113-D7020100-{version}{i}")).join("|"),
        );
        fs::write(self.library().with_file_name("libamd_smi.answers"), text).unwrap();
    }

    fn config(&self) -> Config {
        let library = self.library().display().to_string();
        let more = format!("[amd]\ndeadline = \"5s\"\nlibrary = \"{library}\"\n{NO_NVIDIA}");
        Config { more, ..config(&self.stage, &self.tree) }
    }

    /// Starts an agent and waits until it has read all devices and says this of the library.
    fn wait(&self, config: &Config, what: &str, is_so: impl Fn(&str) -> bool) -> Value {
        let agent = Agent::start(self.stage.folder(), config, None).unwrap();
        let seen = agent.wait_for(what, WITHIN, |who| {
            let devices = who["devices"].as_array().filter(|devices| devices.len() == 8)?;
            let are_well = devices.iter().all(|device| device["state"] == "ok");
            (are_well && is_so(&reason(who))).then(|| who.clone())
        });
        seen.unwrap_or_else(|error| panic!("{error} {:#?} {:#?}", agent.who(), agent.log()))
    }
}

fn source(who: &Value) -> &Value {
    let mut sources = who["sources"].as_array().into_iter().flatten();
    sources.find(|known| known["name"] == "amd").unwrap()
}

fn reason(who: &Value) -> String {
    source(who)["reason"].as_str().unwrap_or_default().to_owned()
}

/// Whether a device's identity has arrived with these attributes.
fn has_arrived(points: &[ReceivedPoint], attrs: &[(&str, &str)]) -> bool {
    !of(points, "gpu.info", attrs).is_empty()
}

#[test]
fn what_no_file_has_of_a_board_arrives_by_each_version_of_the_library() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let node = Node::new(stage);
    let otlp = || Some(Otlp { endpoint: collector.http_endpoint(), protocol: None });
    for version in [25, 26, 27] {
        node.answer(version, "");
        let config = Config { otlp: otlp(), ..node.config() };
        let agent = Agent::start(node.stage.folder(), &config, None).unwrap();
        let of_device = |index: u32| {
            [
                ("gpu.uuid", format!("GPU-e3a98f4e6c9d010{index}")),
                ("gpu.model", format!("AMD Radeon {version} of {index}")),
                ("gpu.serial_number", format!("69240000000{index}")),
                ("gpu.vbios.version", format!("113-D7020100-{version}{index}")),
                ("gpu.board.part_number", format!("102-G30211-0{index}")),
                ("gpu.module.id", index.to_string()),
                // Of the files.
                ("gpu.partition.compute", "SPX".to_owned()),
            ]
        };
        let arrived = collector.wait_for(WITHIN, |points| {
            let is_there = |index| {
                let attrs = of_device(index);
                let attrs: Vec<_> = attrs.iter().map(|(key, text)| (*key, text.as_str())).collect();
                has_arrived(points, &attrs)
            };
            (0..8).all(is_there).then_some(())
        });
        assert!(arrived.unwrap().is_some(), "{version}: {:#?} {:#?}", agent.who(), agent.log());
    }
}

#[test]
fn a_library_that_fails_takes_nothing_from_the_files() {
    let node = Node::new(or_skip!(Stage::new()));
    for (version, behaviours, expected) in [
        (28, "", "version 28 of the library is not known (25 to 27 are)"),
        (27, "amdsmi_init code 34", "amdsmi_init: error 34"),
        (27, "amdsmi_init crash", "signal: 11"),
        (26, "amdsmi_get_gpu_asic_info crash", "signal: 11"),
        (26, "amdsmi_get_gpu_asic_info hang", "amdsmi_get_gpu_asic_info has not returned"),
        (25, "amdsmi_get_processor_handle_from_bdf code 31", "_from_bdf: error 31"),
    ] {
        node.answer(version, behaviours);
        let who = node.wait(&node.config(), expected, |why| why.contains(expected));
        let (state, restarts) = (&source(&who)["state"], &source(&who)["restarts"]);
        assert!(state == "ready" && restarts == 0, "{behaviours}: {who:#}");
        for device in who["devices"].as_array().unwrap() {
            assert_eq!(device["model"], UNNAMED, "{behaviours}: {who:#}");
            assert!(device["power_watts"].as_f64().is_some(), "{behaviours}: {who:#}");
        }
    }
    let without = Config { more: NO_NVIDIA.to_owned(), ..node.config() };
    node.wait(&without, "the library to be missed", |why| why.contains("install libamd_smi.so"));
    let absent = node.stage.folder().join("absent.so");
    let other = node.library().display().to_string();
    let config = node.config();
    let more = config.more.replace(&other, &absent.display().to_string());
    node.wait(&Config { more, ..config }, "the library to be missing", |why| {
        why.contains("absent.so does not exist")
    });
}

#[test]
fn a_structure_of_ones_is_no_name_and_doctor_says_what_a_library_is_refused_for() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let node = Node::new(stage);
    node.answer(26, "amdsmi_get_gpu_asic_info ones\namdsmi_get_gpu_vbios_info code 2");
    let otlp = Some(Otlp { endpoint: collector.http_endpoint(), protocol: None });
    let agent = Agent::start(node.stage.folder(), &Config { otlp, ..node.config() }, None).unwrap();
    // The other structure is whole.
    let serial = ("gpu.serial_number", "692400000003");
    let arrived = collector.wait_for(WITHIN, |points| {
        has_arrived(points, &[serial, ("gpu.model", UNNAMED)]).then(|| points.to_vec())
    });
    let points = arrived.unwrap().unwrap_or_else(|| panic!("{:#?}", agent.log()));
    let own = of(&points, "gpu.info", &[serial]);
    let is_left_out = |key: &str| own.iter().all(|point| !point.attrs.contains_key(key));
    assert!(is_left_out("gpu.module.id") && is_left_out("gpu.vbios.version"), "{own:#?}");
    drop(agent);
    node.answer(28, "");
    let file = node.stage.folder().join("gpuwho.toml").display().to_string();
    let doctor = run(&["doctor", "--all", "--config", &file]);
    let about = line(&doctor, "amd");
    assert!(about.contains("libamd_smi.so: version 28 of the library is not known"), "{doctor}");
}

#[test]
fn a_release_closes_the_process_that_is_inside_the_library_and_it_is_asked_again_afterwards() {
    let node = Node::new(or_skip!(Stage::new()));
    node.answer(27, "amdsmi_get_gpu_asic_info hang");
    let agent = Agent::start(node.stage.folder(), &node.config(), None).unwrap();
    let has_library = || {
        let maps =
            below(agent.pid()).into_iter().map(|process| fs::read_to_string(process.join("maps")));
        maps.flatten().any(|maps| maps.contains("libamd_smi"))
    };
    assert!(until(WITHIN, || has_library().then_some(())).is_some(), "{:#?}", agent.log());
    let begun = Instant::now();
    let socket = agent.socket().display().to_string();
    let said = run(&["release", "--for", "4s", "--socket", &socket]);
    let took = begun.elapsed();
    assert!(said.contains("devices released"), "{said}");
    assert!(!has_library() && took < Duration::from_secs(5), "{took:?}");
    node.answer(27, "");
    let seen = agent.wait_for("the library's words", WITHIN, |who| {
        let mut devices = who["devices"].as_array()?.iter();
        devices.all(|device| device["model"] != UNNAMED).then(|| reason(who))
    });
    assert!(!seen.unwrap().contains("libamd_smi"), "a release is no failure");
    assert!(begun.elapsed() > Duration::from_secs(4), "asked during the release");
}

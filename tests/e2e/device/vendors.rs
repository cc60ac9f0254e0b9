//! One node with devices of every vendor but NVIDIA, Gaudi's read by its library, the others' by files: what
//! is read of them and whose they are arrives at the real OpenTelemetry Collector.

mod failures;
mod gaudi;
pub(super) mod grants;
mod intel;
mod release;
mod truth;

use crate::fixture::{SEEN_WITHIN, TRAINER, ended, owner, without_kernel};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::amd::{On, Tree};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, of};
use gpuwho_tests::fakes::{FAKES, Fake, load};
use gpuwho_tests::program;
use gpuwho_tests::stage::{Group, PodSpec, Stage};
use gpuwho_tests::vendors::gaudi as fake_gaudi;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::nodes::{host_nodes, number_of};
use gpuwho_tests::worker::script::Script;
use gpuwho_tests::{or_skip, skip};
use nvidia_ml::scenario::Scenario;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

/// A few ticks and the starts of readers, on a machine under load.
const WITHIN: Duration = Duration::from_secs(90);
/// The scenario.
const SCENARIO: &str = "accelerators";
/// The second of the scenario that the trees show, and a later one.
const NOW: f64 = 100.0;
const LATER: f64 = 110.0;
/// The vendors, each with what a worker's script calls its first device, and whose driver names the
/// processes on it: those of Intel's by the clients of DRM, which a node that stands for one has not.
const VENDORS: [(&str, u32, bool); 6] = [
    ("amd", 128, false),
    ("gaudi", 1000, false),
    ("tenstorrent", 2000, false),
    ("tpu", 3000, false),
    ("intel", 4000, true),
    ("neuron", 5000, false),
];
/// Shorter than any scan of `/proc` could be.
const FLASH: Duration = Duration::from_millis(30);
/// What a script calls a processor's neural unit and what a virtual machine has of a network card.
const OTHERS: [u32; 2] = [1009, 3009];

/// The host's files, and what plays them.
struct Host {
    root: PathBuf,
    scenario: Scenario,
    fakes: Vec<Box<dyn Fake>>,
}

impl Host {
    fn new(stage: &Stage) -> Self {
        let root = stage.folder().join("host");
        let scenario = load(SCENARIO).unwrap();
        let install = |(name, _, _): &(&str, u32, bool)| {
            let vendor = FAKES.iter().find(|vendor| vendor.name == *name).unwrap();
            (vendor.install)(&root, scenario.clone().only(name)).unwrap()
        };
        let fakes = VENDORS.iter().map(install).collect();
        let host = Self { root, scenario, fakes };
        fs::copy(program::fake_hlml().unwrap(), host.library()).unwrap();
        host.answer(&host.answers());
        host.play();
        host.add_others();
        host_nodes(stage.folder()).unwrap();
        host
    }

    fn library(&self) -> PathBuf {
        self.root.join("libhlml.so")
    }

    /// What Gaudi's library answers.
    fn answers(&self) -> String {
        self.answers_at(NOW)
    }

    fn answers_at(&self, seconds: f64) -> String {
        fake_gaudi::answers(&self.scenario.clone().only("gaudi"), seconds)
    }

    fn answer(&self, text: &str) {
        let path = self.root.join("libhlml.answers");
        // The library never sees a half of it.
        fs::write(path.with_extension("new"), text).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    }

    /// Shows the same second again; the firmware's heart beats.
    fn play(&self) {
        self.fakes.iter().for_each(|fake| fake.play(NOW).unwrap());
    }

    /// Shows another second, in Gaudi's library too.
    fn show(&self, seconds: f64) {
        self.answer(&self.answers_at(seconds));
        self.fakes.iter().for_each(|fake| fake.play(seconds).unwrap());
    }

    /// Puts a process on its device, where the driver lists processes.
    fn list(&self, number: u32, pid: u32) {
        let fakes = self.fakes.iter().filter(|fake| fake.numbers().contains(&number));
        fakes.for_each(|fake| fake.set_processes(number, &[pid]).unwrap());
        if number == VENDORS[0].1 {
            // Half of the compute units.
            let on = On { pid, render: number, bytes: 0 };
            Tree::made(&self.root).statistics(&on, 152, 1500).unwrap();
        }
    }

    /// The same of all vendors but one, whose files a test has changed.
    fn play_all_but(&self, vendor: &str) {
        let fakes = VENDORS.iter().zip(&self.fakes).filter(|((name, _, _), _)| *name != vendor);
        fakes.for_each(|(_, fake)| fake.play(NOW).unwrap());
    }

    /// A device of the class `accel` that is no accelerator of a known vendor's, and a group of a network
    /// card.
    fn add_others(&self) {
        let sys = self.root.join("sys");
        let unit = sys.join("class/accel/accel9");
        fs::create_dir_all(unit.join("device")).unwrap();
        fs::write(unit.join("dev"), number_of("accel/accel9", (261, 9))).unwrap();
        symlink(sys.join("bus/pci/drivers/intel_vpu"), unit.join("device/driver")).unwrap();
        let card = sys.join("devices/pci0000:00/0000:e0:00.0");
        fs::create_dir_all(&card).unwrap();
        fs::write(card.join("vendor"), "0x8086\n").unwrap();
        fs::write(card.join("device"), "0x1572\n").unwrap();
        let devices = sys.join("kernel/iommu_groups/9/devices");
        fs::create_dir_all(&devices).unwrap();
        symlink(&card, devices.join("0000:e0:00.0")).unwrap();
        fs::create_dir_all(sys.join("class/vfio/9")).unwrap();
        fs::write(sys.join("class/vfio/9/dev"), number_of("vfio/9", (243, 9))).unwrap();
    }

    fn config(&self, stage: &Stage) -> Config {
        let below = |name: &str| stage.folder().join("dev").join(name).display().to_string();
        let nodes = ["kfd", "dri/renderD1[26]*", "accel/accel*", "tenstorrent/*", "neuron*"];
        Config {
            interval: Some("500ms".to_owned()),
            pod_logs: Some(stage.pod_logs()),
            sys: Some(self.root.join("sys")),
            nodes: Some(nodes.into_iter().map(below).collect()),
            more: format!(
                "[nvidia]\nenabled = false\n[gaudi]\nlibrary = \"{}\"\ndeadline = \"2s\"\n",
                self.library().display()
            ),
            ..Config::default()
        }
    }
}

/// A process on the first device of each vendor, each in a pod of its own.
fn workers(stage: &mut Stage, host: &Host) -> Vec<(&'static str, Group, Worker)> {
    let mut begin = |(vendor, number, _): (&'static str, u32, bool)| {
        let name = pod_of(vendor);
        let group = stage.pod(&PodSpec { name: &name, ..TRAINER }).unwrap();
        let libtpu = (vendor == "tpu").then(|| SCENARIO.to_owned());
        let script = Script { gpus: vec![number], libtpu, ..Script::default() };
        let worker = Worker::start(Some(&group), &script).unwrap();
        host.list(number, worker.pid());
        (vendor, group, worker)
    };
    VENDORS.into_iter().map(&mut begin).collect()
}

fn pod_of(vendor: &str) -> String {
    format!("on-{vendor}")
}

/// The values of a metric of a device that have arrived.
fn arrived(points: &[ReceivedPoint], name: &str, attrs: &[(&str, &str)]) -> Vec<f64> {
    of(points, name, attrs).iter().filter_map(|point| point.number()).collect()
}

/// Processes of a vendor's devices by PID and pod.
fn processes(who: &Value, vendor: &str) -> Vec<(u64, String)> {
    let devices = who["devices"].as_array().into_iter().flatten();
    let own = devices.filter(|device| device["vendor"] == vendor);
    let on = own.flat_map(|device| device["processes"].as_array().into_iter().flatten());
    on.filter_map(|on| Some((on["pid"].as_u64()?, on["pod"].as_str()?.to_owned()))).collect()
}

#[test]
fn who_opens_a_vendors_node_is_its_owner_and_a_virtual_machine_is_nobody() {
    let mut stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let host = Host::new(&stage);
    // Before the others, so that it would be seen before them.
    let machine = stage.pod(&PodSpec { name: "machine", ..TRAINER }).unwrap();
    let machine = Worker::on(&machine, &OTHERS).unwrap();
    let workers = workers(&mut stage, &host);
    let otlp = Some(Otlp { endpoint: collector.http_endpoint(), protocol: None });
    let config = Config { otlp, ..host.config(&stage) };
    let agent = Agent::start(stage.folder(), &config, None).unwrap();
    let ready = |points: &[ReceivedPoint]| {
        host.play();
        let is_owned = |vendor: &str| {
            let pod = pod_of(vendor);
            let on = [("gpu.vendor", vendor), ("k8s.pod.name", pod.as_str())];
            let owners = arrived(points, "gpu.owner.processes", &on);
            owners.last() == Some(&1.0)
        };
        let owned = VENDORS.iter().all(|(vendor, _, _)| is_owned(vendor));
        (owned && truth::is_complete(points)).then(|| points.to_vec())
    };
    let points = collector.wait_for(WITHIN, ready).unwrap();
    let points = points.unwrap_or_else(|| {
        panic!("{:#?} {:#?} {:#?}", truth::missing(&[]), agent.who(), agent.log())
    });
    truth::holds(&points);
    let who = agent.who().unwrap();
    for ((vendor, _, worker), (_, _, by_driver)) in workers.iter().zip(VENDORS) {
        if !by_driver {
            let expected = [(u64::from(worker.pid()), pod_of(vendor))];
            assert_eq!(processes(&who, vendor), expected, "{vendor}: {who:#}");
        }
    }
    let holders = who["holders"].as_array().unwrap();
    assert!(holders.iter().all(|holder| holder["pid"] != machine.pid()), "{holders:#?}");
    let strange = of(&points, "gpu.owner.processes", &[("k8s.pod.name", "machine")]);
    assert!(strange.is_empty(), "{strange:#?}");
    // Every reading is of its own tick.
    host.show(LATER);
    let fresh =
        collector.wait_for(WITHIN, |points| truth::stale(points).is_empty().then_some(())).unwrap();
    let stale = || truth::stale(&collector.points().unwrap());
    assert!(fresh.is_some(), "{:#?} {:#?}", stale(), agent.log());
}

#[test]
fn a_process_that_exits_within_50_ms_is_owned_whichever_vendors_node_it_opened() {
    let mut stage = or_skip!(Stage::new());
    let host = Host::new(&stage);
    let agent = Agent::start(stage.folder(), &host.config(&stage), None).unwrap();
    if let Some(reason) = without_kernel(&agent) {
        skip!("{reason}");
    }
    for (vendor, number, _) in VENDORS {
        let group = stage.pod(&PodSpec { name: &pod_of(vendor), ..TRAINER }).unwrap();
        let pid = Worker::flash(&group, &[number], FLASH).unwrap();
        let what = format!("the end of a short process on {vendor}");
        let found = agent.wait_for(&what, SEEN_WITHIN, |who| ended(who, pid).cloned()).unwrap();
        assert_eq!(owner(&found), group.expected, "{vendor}: {found:#}");
    }
}

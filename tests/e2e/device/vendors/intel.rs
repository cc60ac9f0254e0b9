//! Two pods on one Intel device, and AMD's beside it: whose work it is, by the kernel's accounting of each
//! DRM client, and what the kernel says about the devices arrive at the real OpenTelemetry Collector.
//!
//! A node that stands for a device has no DRM client. So the agent reads a `/proc` in which the workers'
//! descriptors have one more, of a client whose text the test writes; all else in it is the kernel's.

use super::{WITHIN, arrived};
use crate::fixture::TRAINER;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::amd;
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedPoint, ReceivedRecord};
use gpuwho_tests::fakes::{Fake, load};
use gpuwho_tests::kmsg::Kmsg;
use gpuwho_tests::or_skip;
use gpuwho_tests::stage::{PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::vendors::INTEL;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::nodes::host_nodes;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat, stat};
use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const INTEL_PCI: &str = "0000:c0:00.0";
const INTEL_UUID: &str = "GPU-0000:c0:00.0";
const AMD_UUID: &str = "GPU-e3a98f4e6c9d0101";
/// AMD's second device.
const RENDER: u32 = 129;
/// The descriptor of the client, which no worker has.
const FD: u32 = 99;
/// Cycles that a process has of a thousand of the engine's.
const OF_THOUSAND: [u64; 2] = [300, 100];

/// A `/proc` with one more descriptor of some processes.
struct Proc(PathBuf);

impl Proc {
    fn new(folder: PathBuf, pids: &[u32]) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let own = |name: &str| pids.iter().any(|pid| pid.to_string() == name);
        link_all(Path::new("/proc"), &folder, own);
        for pid in pids {
            let (from, to) =
                (Path::new("/proc").join(pid.to_string()), folder.join(pid.to_string()));
            fs::create_dir_all(to.join("fd")).unwrap();
            fs::create_dir_all(to.join("fdinfo")).unwrap();
            link_all(&from, &to, |name| ["fd", "fdinfo"].contains(&name));
            let node = |name: &OsStr, number: u64| {
                let place = to.join("fd").join(name);
                mknodat(CWD, &place, FileType::CharacterDevice, Mode::empty(), number).unwrap();
            };
            // The nodes that it has open; a link to one would lead elsewhere from here.
            for entry in fs::read_dir(from.join("fd")).unwrap().flatten() {
                let about = stat(entry.path()).unwrap();
                if FileType::from_raw_mode(about.st_mode) == FileType::CharacterDevice {
                    node(&entry.file_name(), about.st_rdev);
                }
            }
            node(OsStr::new(&FD.to_string()), makedev(226, 200));
        }
        Self(folder)
    }

    /// What the driver says of a process's client after so many thousands of cycles.
    fn client(&self, pid: u32, of_thousand: u64, thousands: u64) {
        let text = format!(
            "pos:\t0\ndrm-driver:\txe\ndrm-client-id:\t{pid}\ndrm-pdev:\t{INTEL_PCI}\n\
             drm-resident-vram0:\t2048 KiB\ndrm-cycles-ccs:\t{}\ndrm-total-cycles-ccs:\t{}\n",
            thousands * of_thousand,
            thousands * 1000
        );
        let path = self.0.join(format!("{pid}/fdinfo/{FD}"));
        let new = self.0.join(format!("{pid}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }
}

fn link_all(from: &Path, to: &Path, but: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(from).unwrap().flatten() {
        let name = entry.file_name();
        if !but(name.to_str().unwrap()) {
            symlink(entry.path(), to.join(name)).unwrap();
        }
    }
}

struct Scene {
    // Ended before what it reads.
    agent: Agent,
    workers: Vec<Worker>,
    _on_amd: Worker,
    kmsg: Kmsg,
    proc: Proc,
    intel: Box<dyn Fake>,
    thousands: Cell<u64>,
    collector: Collector,
    _stage: Stage,
}

impl Scene {
    fn new(mut stage: Stage, collector: Collector) -> Self {
        let root = stage.folder().join("host");
        let intel = (INTEL.install)(&root, load("accelerators").unwrap().only("intel")).unwrap();
        let tree = (amd::VENDOR.install)(&root, load("mi300x8").unwrap()).unwrap();
        let mut worker = |name: &str, number: u32| {
            let pod = stage.pod(&PodSpec { name, ..TRAINER }).unwrap();
            Worker::on(&pod, &[number]).unwrap()
        };
        let workers = vec![worker("large", 4000), worker("small", 4000)];
        let on_amd = worker("on-amd", RENDER);
        tree.set_processes(RENDER, &[on_amd.pid()]).unwrap();
        let pids = [workers[0].pid(), workers[1].pid()];
        let proc = Proc::new(stage.folder().join("proc"), &[pids[0], pids[1], on_amd.pid()]);
        let kmsg = Kmsg::new(stage.folder()).unwrap();
        host_nodes(stage.folder()).unwrap();
        let below = |name: &str| stage.folder().join("dev").join(name).display().to_string();
        let nodes = ["dri/renderD16*", "dri/renderD129", "kfd"];
        let config = Config {
            interval: Some("500ms".to_owned()),
            pod_logs: Some(stage.pod_logs()),
            sys: Some(root.join("sys")),
            proc: Some(proc.0.clone()),
            kmsg: Some(kmsg.path()),
            nodes: Some(nodes.into_iter().map(below).collect()),
            otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
            more: "[nvidia]\nenabled = false\n[health]\nenabled = false\n".to_owned(),
            ..Config::default()
        };
        let agent = Agent::start(stage.folder(), &config, None).unwrap();
        let thousands = Cell::new(1);
        Self {
            agent,
            workers,
            kmsg,
            proc,
            intel,
            thousands,
            collector,
            _on_amd: on_amd,
            _stage: stage,
        }
    }

    /// Lets the engines go on.
    fn play(&self) {
        self.intel.play(100.0).unwrap();
        self.thousands.set(self.thousands.get() + 1);
        for (worker, of_thousand) in self.workers.iter().zip(OF_THOUSAND) {
            self.proc.client(worker.pid(), of_thousand, self.thousands.get());
        }
    }

    fn wait(&self, ready: impl Fn(&[ReceivedPoint]) -> bool) -> Vec<ReceivedPoint> {
        let look = |points: &[ReceivedPoint]| {
            self.play();
            ready(points).then(|| points.to_vec())
        };
        let points = self.collector.wait_for(WITHIN, look).unwrap();
        points.unwrap_or_else(|| panic!("{:#?} {:#?}", self.agent.who(), self.agent.log()))
    }
}

/// The busy time of a pod on the device, and how it was found.
fn busy(points: &[ReceivedPoint], pod: &str) -> f64 {
    let on = [("gpu.uuid", INTEL_UUID), ("k8s.pod.name", pod), ("gpuwho.share.method", "sampled")];
    arrived(points, "gpu.owner.busy.time", &on).last().copied().unwrap_or(0.0)
}

#[test]
fn pods_on_one_intel_device_have_their_own_use_and_their_part_of_the_devices() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let scene = Scene::new(stage, collector);
    let points = scene.wait(|points| busy(points, "small") > 0.2 && busy(points, "large") > 0.2);
    for (worker, of_thousand) in scene.workers.iter().zip([0.3, 0.1]) {
        let pid = worker.pid().to_string();
        let on = [("gpu.uuid", INTEL_UUID), ("process.pid", pid.as_str())];
        let task = [("gpu.task", "sm")];
        let found = arrived(&points, "gpu.process.utilization", &[&on[..], &task].concat());
        let is_right = |busy: &f64| *busy < 1e-9 || (busy - of_thousand).abs() < 1e-9;
        assert!(found.iter().all(is_right) && found.iter().any(|busy| *busy > 0.0), "{found:?}");
        let kind = [("gpu.process.type", "compute")];
        let bytes = arrived(&points, "gpu.process.memory.usage", &[&on[..], &kind].concat());
        assert!(
            !bytes.is_empty() && bytes.iter().all(|bytes| (bytes - 2_097_152.0).abs() < 1.0),
            "{bytes:?}"
        );
    }
    let (large, small) = (busy(&points, "large"), busy(&points, "small"));
    // Readings between the two files' changes are of one of them.
    assert!(large / small > 1.5, "{large} and {small} s, of 3 to 1");
}

/// The records of a line: event, device, pod, and how the pod is affected.
fn said(records: &[ReceivedRecord], line: &str) -> Vec<(String, [String; 3])> {
    // Processes of other tests hold nodes of the same numbers, without a name here.
    let is_of = |record: &&ReceivedRecord| {
        record.body == line && record.attrs.contains_key("k8s.namespace.name")
    };
    let row = |record: &ReceivedRecord| {
        let text = |name: &str| record.attrs.get(name).cloned().unwrap_or_default();
        let names = ["gpu.uuid", "k8s.pod.name", "gpuwho.event.affected"].map(text);
        (record.event.clone(), names)
    };
    let mut all: Vec<_> = records.iter().filter(is_of).map(row).collect();
    all.sort();
    all
}

#[test]
fn resets_of_amds_and_intels_devices_arrive_with_whom_they_affect() {
    let stage = or_skip!(Stage::new());
    let collector = or_skip!(Collector::start(&stage.folder().join("collector")));
    let mut scene = Scene::new(stage, collector);
    scene.wait(|points| {
        let known = |uuid, pod| {
            let on = [("gpu.uuid", uuid), ("k8s.pod.name", pod)];
            !arrived(points, "gpu.process.memory.usage", &on).is_empty()
        };
        known(INTEL_UUID, "large") && known(AMD_UUID, "on-amd")
    });
    let pid = scene.workers[1].pid();
    let amd = amd::address(&load("mi300x8").unwrap().device(1).unwrap());
    let lines = [
        format!("amdgpu {amd}: amdgpu: GPU reset begin!"),
        format!("xe {INTEL_PCI}: [drm] GT0: reset started"),
        format!(
            "xe {INTEL_PCI}: [drm] GT0: Timedout job: seqno=7, lrc_seqno=7, guc_id=2, flags=0x0 in x [{pid}]"
        ),
    ];
    for line in &lines {
        scene.kmsg.write_line(line).unwrap();
    }
    let arrived = || {
        let records = scene.collector.records().unwrap();
        let all: Vec<_> = lines.iter().map(|line| said(&records, line)).collect();
        (all[0].len() == 1 && all[1].len() == 2 && all[2].len() == 2).then_some(all)
    };
    let found = until(WITHIN, arrived)
        .unwrap_or_else(|| panic!("{:#?} {:#?}", scene.collector.records(), scene.agent.log()));
    let expected = |event: &str, uuid: &str, pod: &str, how: &str| {
        (event.to_owned(), [uuid, pod, how].map(str::to_owned))
    };
    assert_eq!(found[0], [expected("gpu.reset", AMD_UUID, "on-amd", "device")]);
    assert_eq!(
        found[1],
        [
            expected("gpu.reset", INTEL_UUID, "large", "device"),
            expected("gpu.reset", INTEL_UUID, "small", "device"),
        ]
    );
    assert_eq!(
        found[2],
        [
            expected("gpu.driver.timeout", INTEL_UUID, "large", "device"),
            expected("gpu.driver.timeout", INTEL_UUID, "small", "named"),
        ]
    );
}

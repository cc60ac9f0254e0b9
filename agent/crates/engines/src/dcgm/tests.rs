use super::*;
use crate::ENGINES;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::sample::{Subject, Value};
use gpuwho_owners::attribute::Evidence;
use gpuwho_owners::attribute::fake::{FakeHost, opened};
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::inventory::{GpuInfo, InstanceExtent, InstanceInfo};
use rustix::process::geteuid;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

const PAGE: &str =
    include_str!("../../../../../tests/fixtures/dcgm/dcgm-exporter-4-documented.prom");

/// The inventory of the page's host: a T4, an A800 with instances, an H100.
fn inventory() -> (Inventory, [GpuId; 3], [InstanceId; 3]) {
    let inventory = Inventory::default();
    let uuids = [
        "GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a",
        "GPU-1f027ee8-6e1e-2b8c-0108-3d370e5f0418",
        "GPU-a8394b51-c086-568a-9f1a-c1e1c934c44c",
    ];
    let mut index = 0;
    let gpus = uuids.map(|uuid| {
        index += 1;
        inventory.put(GpuInfo::new(GpuUuid::new(uuid), "nvidia", index - 1))
    });
    // Two compute instances share the GPU instance 3.
    let instances = [(3, 1), (3, 0), (5, 0)].map(|(gpu_instance, compute_instance)| {
        inventory.put_instance(InstanceInfo {
            uuid: GpuUuid::new(&format!("MIG-{gpu_instance}-{compute_instance}")),
            gpu: gpus[1],
            gpu_instance,
            compute_instance: Some(compute_instance),
            profile: None,
            extent: InstanceExtent::default(),
        })
    });
    (inventory, gpus, instances)
}

fn read_page(page: &str, inventory: &Inventory, counted: &[GpuId]) -> Vec<Sample> {
    let mut out = Batch::new("engines", UNIX_EPOCH);
    read_for(&DcgmFeeds::default(), 1, page, (inventory, counted), &mut out);
    out.samples.into_iter().map(|(_, sample)| sample).collect()
}

/// What a part reads of a page.
fn read_for(
    fed: &DcgmFeeds,
    part: u32,
    page: &str,
    (inventory, counted): (&Inventory, &[GpuId]),
    out: &mut Batch,
) {
    fed.feed(part, (page.as_bytes(), inventory, &|gpu| counted.contains(&gpu)), out);
}

/// The values of a metric's series about a subject.
fn values(samples: &[Sample], name: &str, subject: impl Into<Subject>) -> Vec<f64> {
    let subject = subject.into();
    let mine = samples.iter().filter(|one| one.metric.name == name && one.subject == subject);
    let value = |sample: &Sample| match sample.value {
        Value::Double(value) => value,
        _ => panic!("{sample:?}"),
    };
    mine.map(value).collect()
}

#[test]
fn fields_are_about_our_devices_and_instances() {
    let (inventory, [t4, a800, h100], [second, first, other]) = inventory();
    let samples = read_page(PAGE, &inventory, &[]);
    assert_eq!(values(&samples, "gpu.sm.active", t4), [0.82]);
    assert_eq!(values(&samples, "gpu.pipe.active", t4), [0.005_822, 0.0, 0.11, 0.01]);
    assert_eq!(values(&samples, "gpu.pcie.throughput", h100), [4_791_810.0, 123_456_789.0]);
    assert_eq!(values(&samples, "gpu.sm.active", a800), Vec::<f64>::new());
    assert_eq!(values(&samples, "gpu.instance.gr_engine.active", first), [0.174_817]);
    assert_eq!(values(&samples, "gpu.instance.gr_engine.active", other), [0.5]);
    assert!(samples.iter().all(|sample| sample.subject != second.into()));
    // Neither another host's device nor the exporter's words for whose it is.
    assert!(samples.iter().all(|sample| sample.labels.is_none()));
    assert_eq!(samples.len(), 12 * 2 + 10 * 2);
}

/// The page as exporter 4.9 has it: names of DCGM 4.7 (NVIDIA/go-dcgm `pkg/dcgm/const_fields.go`), other labels.
fn newer(page: &str) -> String {
    let mut page = page.replace("PIPE_", "").replace("TENSOR_HMMA", "HMMA");
    for (old, new) in [
        ("_ACTIVE", "_UTIL_RATIO"),
        ("SM_OCCUPANCY", "SM_OCCUPANCY_RATIO"),
        ("Hostname", "hostname"),
        ("DCGM_FI_DRIVER", "DCGM_FI_SYSTEM_DRIVER"),
    ] {
        page = page.replace(old, new);
    }
    page
}

#[test]
fn the_names_of_dcgm_4_7_are_the_same_fields() {
    let (inventory, ..) = inventory();
    let page = newer(PAGE);
    assert!(page.contains("DCGM_FI_PROF_TENSOR_UTIL_RATIO{") && !page.contains("_ACTIVE{"));
    assert_eq!(read_page(&page, &inventory, &[]), read_page(PAGE, &inventory, &[]));
    // Percent, as field 203 has it under a name of the newer ones: no fraction.
    let line = "DCGM_FI_PROF_SM_UTIL_RATIO{UUID=\"GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a\"} 61\n";
    assert_eq!(read_page(line, &inventory, &[]), []);
}

#[test]
fn what_the_agent_reads_itself_is_not_there_twice() {
    let (inventory, [t4, a800, h100], _) = inventory();
    let samples = read_page(PAGE, &inventory, &[h100]);
    assert_eq!(values(&samples, "gpu.sm.active", h100), Vec::<f64>::new());
    assert_eq!(values(&samples, "gpu.sm.active", t4), [0.82]);
    assert_eq!(read_page(PAGE, &inventory, &[t4, a800, h100]), Vec::<Sample>::new());
}

#[test]
fn values_out_of_range_are_no_samples() {
    let (inventory, ..) = inventory();
    let bad = [("SM_ACTIVE", ["NaN", "-1", "1.5", "9223372036854775794"].as_slice())];
    let rates = [("PCIE_TX_BYTES", ["1e300", "1e14", "+Inf"].as_slice())];
    let all = bad.iter().chain(&rates);
    for (field, value) in all.flat_map(|(field, all)| all.iter().map(move |value| (field, value))) {
        let line =
            format!("DCGM_FI_PROF_{field}{{UUID=\"GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a\"}}");
        assert_eq!(read_page(&format!("{line} {value}\n"), &inventory, &[]), Vec::<Sample>::new());
    }
}

#[test]
fn an_endless_page_has_a_bound() {
    let (inventory, ..) = inventory();
    let uuid = |n: usize| format!("GPU-00000000-0000-0000-0000-{n:012}");
    for n in 0..MAX_SAMPLES + 9 {
        inventory.put(GpuInfo::new(GpuUuid::new(&uuid(n)), "nvidia", 9));
    }
    let line = |n| format!("DCGM_FI_PROF_SM_ACTIVE{{UUID=\"{}\"}} 0.5\n", uuid(n));
    let page: String = (0..MAX_SAMPLES + 9).map(line).collect();
    assert_eq!(read_page(&page, &inventory, &[]).len(), MAX_SAMPLES);
}

#[test]
fn a_series_is_there_once_however_often_the_page_has_it() {
    let (inventory, [t4, ..], _) = inventory();
    let line = |pod: &str, value: f64| {
        let uuid = "GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a";
        format!("DCGM_FI_PROF_SM_ACTIVE{{UUID=\"{uuid}\",pod=\"{pod}\"}} {value}\n")
    };
    let samples = read_page(&(line("a", 0.5) + &line("b", 0.25)), &inventory, &[]);
    assert_eq!(values(&samples, "gpu.sm.active", t4), [0.5]);
}

#[test]
fn of_two_exporters_one_feeds_a_device_until_it_ends() {
    let (inventory, ..) = inventory();
    let fed = DcgmFeeds::default();
    let read = |part| {
        let mut out = Batch::new("engines", UNIX_EPOCH);
        read_for(&fed, part, PAGE, (&inventory, &[]), &mut out);
        out.samples.len()
    };
    assert_eq!([read(1), read(2), read(1), read(2)], [44, 0, 44, 0]);
    fed.release(1);
    assert_eq!([read(2), read(1)], [44, 0]);
    // A part whose page has none of the devices any more makes room.
    fed.feed(2, (b"", &inventory, &|_| false), &mut Batch::new("engines", UNIX_EPOCH));
    assert_eq!(read(1), 44);
}

/// Programs, in a folder of root's and in one where everybody may make links.
fn programs(folders: &Path) -> PathBuf {
    fs::create_dir_all(folders.join("shared")).unwrap();
    for name in ["dcgm-exporter", "su", "shared/dcgm-exporter"] {
        fs::write(folders.join(name), "").unwrap();
        fs::set_permissions(folders.join(name), Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(folders.join("shared"), Permissions::from_mode(0o1777)).unwrap();
    folders.to_owned()
}

/// The server of that name that a process is.
fn server(engine: &str, process: ProcKey, ownership: &Ownership) -> Server {
    Server {
        engine: ENGINES.iter().copied().find(|one| one.name == engine),
        annotated: None,
        process,
        network: 1,
        at: ([127, 0, 0, 1], 9400).into(),
        cgroup: None,
        owner: ownership.attribution(process).unwrap(),
        holders: vec![process],
    }
}

#[test]
fn only_an_exporter_that_is_root_of_the_host_is_believed() {
    const ADMIN: &str = "00000000a82425fb";
    let host = FakeHost::new();
    let process = ProcKey { pid: 7, start_ticks: 100 };
    host.start(process, "dcgm-exporter", "0::/\n");
    let folder = |process: &str| host.paths.proc.join(process).join("ns");
    for process in ["self", "7", "8"] {
        fs::create_dir_all(folder(process)).unwrap();
    }
    fs::write(folder("self").join("user"), "").unwrap();
    fs::write(folder("8").join("user"), "").unwrap();
    let of = |namespace: &str| {
        let _ = fs::remove_file(folder("7").join("user"));
        fs::hard_link(folder(namespace).join("user"), folder("7").join("user")).unwrap();
    };
    let ownership = Ownership::new(&host.paths);
    ownership.observe(Evidence::Opened(opened(process, 1, 1_000_000_000)));
    let is_trusted = |engine, (uids, capabilities): (&str, &str), namespace| {
        host.write(process, "status", format!("Tgid:\t7\nUid:\t{uids}\nCapEff:\t{capabilities}\n"));
        of(namespace);
        is_trusted(&host.paths, &server(engine, process, &ownership))
    };
    let folders = programs(&host.paths.proc.join("programs"));
    let of_process = host.paths.proc.join("7");
    symlink("/", of_process.join("root")).unwrap();
    let runs = |name: &str| {
        let _ = fs::remove_file(of_process.join("exe"));
        symlink(folders.join(name), of_process.join("exe")).unwrap();
    };
    let root = ("0\t0\t0\t0", ADMIN);
    if !geteuid().is_root() {
        println!("skipped: needs root, whose files are believed");
        return;
    }
    for program in ["su", "shared/dcgm-exporter", "gone"] {
        runs(program);
        assert!(!is_trusted("dcgm-exporter", root, "self"), "{program}");
    }
    runs("dcgm-exporter");
    assert!(is_trusted("dcgm-exporter", root, "self"));
    for (mode, owner, whose) in [(0o775, 0, "the group may write it"), (0o755, 65_534, "a user's")]
    {
        let program = folders.join("dcgm-exporter");
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        chown(&program, Some(owner), None).unwrap();
        assert!(!is_trusted("dcgm-exporter", root, "self"), "{whose}");
        chown(&program, Some(0), None).unwrap();
    }
    let container = ("0\t0\t0\t0", "00000000a80425fb");
    for (engine, user, namespace, whose) in [
        ("vllm", root, "self", "another engine's server"),
        ("dcgm-exporter", root, "8", "root of a user namespace"),
        ("dcgm-exporter", container, "self", "a container"),
        ("dcgm-exporter", ("1000\t0\t0\t0", ADMIN), "self", "a user"),
    ] {
        assert!(!is_trusted(engine, user, namespace), "{whose}");
    }
}

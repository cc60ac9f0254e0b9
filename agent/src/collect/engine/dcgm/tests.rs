use super::*;
use crate::inventory::{GpuInfo, InstanceExtent, InstanceInfo};
use crate::sample::{Subject, Value};
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
    let count = read(page.as_bytes(), inventory, &|gpu| counted.contains(&gpu), &mut out);
    assert_eq!(count, out.samples.len());
    out.samples.into_iter().map(|(_, sample)| sample).collect()
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
    for value in ["NaN", "-1", "1.5", "9223372036854775794"] {
        let line = "DCGM_FI_PROF_SM_ACTIVE{UUID=\"GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a\"}";
        assert_eq!(read_page(&format!("{line} {value}\n"), &inventory, &[]), Vec::<Sample>::new());
    }
}

#[test]
fn an_endless_page_has_a_bound() {
    let (inventory, ..) = inventory();
    let line = "DCGM_FI_PROF_SM_ACTIVE{UUID=\"GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a\"} 0.5\n";
    assert_eq!(read_page(&line.repeat(MAX_SAMPLES + 9), &inventory, &[]).len(), MAX_SAMPLES);
}

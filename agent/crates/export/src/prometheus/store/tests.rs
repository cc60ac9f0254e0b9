use super::super::fixture::{labels, point, power, store};
use super::*;
use crate::naming::Profile::{Dcgm, Native};
use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
use gpuwho_model::catalog::dcgm::Vocabulary::{New, Old};
use gpuwho_model::catalog::{device, engine, event, gpm, instance};
use std::io::Read as _;

fn text(store: &mut Store, format: Format, now: Instant) -> String {
    let page = store.page(format, false, now).unwrap();
    String::from_utf8(page.body.to_vec()).unwrap()
}

fn sample(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

#[test]
fn a_page_has_the_last_points_under_translated_names() {
    let own = labels(None);
    let energy = |joules| point(device::ENERGY.def(), &own, Some(Value::Double(joules)));
    let mut store = store(&[Native], vec![energy(1.0)]);
    store.update(&EnrichedBatch { points: vec![energy(2.5)] }, Instant::now());
    let lines = r#"gpu_energy_joules_total{gpu_uuid="GPU-1",gpu_index="0",host_name="node"} 2.5"#;
    let plain = text(&mut store, Format::Text, Instant::now());
    assert_eq!(sample(&plain), [lines, r#"target_info{host_name="node"} 1"#]);
    assert!(plain.contains("# TYPE gpu_energy_joules_total counter\n"), "{plain}");
    let metrics = text(&mut store, Format::OpenMetrics, Instant::now());
    assert_eq!(sample(&metrics), sample(&plain));
    let head = "# TYPE gpu_energy_joules counter\n# UNIT gpu_energy_joules joules\n# HELP ";
    assert!(metrics.contains(head) && metrics.ends_with("# EOF\n"), "{metrics}");
}

#[test]
fn every_series_says_of_which_host_and_cluster_it_is() {
    use crate::naming::Profile::L9gpu;
    let mut resource = AttrSet::new();
    let facts = [
        (&attr::HOST_NAME, "node-1"),
        (&attr::OS_TYPE, "linux"),
        (&attr::K8S_CLUSTER_NAME, "prod"),
        (&attr::CLOUD_ZONE, "a"),
    ];
    for (key, value) in facts {
        resource.set(key, value);
    }
    let labels = text::of_host(resource.iter().map(|(key, value)| (key.name, value)));
    let promoted = r#",host_name="node-1",k8s_cluster_name="prod",cloud_availability_zone="a""#;
    assert_eq!(&*labels, promoted);
    assert_eq!(&*text::of_host(std::iter::empty()), "");
    let mut store = store(&[Native, Dcgm(Old)], mig_device());
    store.options.of_host = labels;
    let page = text(&mut store, Format::OpenMetrics, Instant::now());
    for line in sample(&page) {
        let has = [
            line.contains(promoted),
            line.contains("Hostname=\"node\""),
            line.starts_with("target_info"),
        ];
        assert_eq!(has.iter().filter(|has| **has).count(), 1, "{line}");
    }
    // This profile's translator has put it there.
    store.options.profiles = vec![L9gpu];
    let page = text(&mut store, Format::Text, Instant::now());
    assert!(!page.contains(promoted), "{page}");
}

#[test]
fn a_series_that_ended_or_is_not_finite_is_absent() {
    let own = labels(None);
    let at = |value| vec![point(device::POWER.def(), &own, value)];
    let mut store = store(&[Native], at(Some(Value::Double(f64::NAN))));
    assert_eq!(store.not_finite, 1);
    assert_eq!(sample(&text(&mut store, Format::Text, Instant::now())).len(), 1);
    let mut update = |value| {
        store.update(&EnrichedBatch { points: at(value) }, Instant::now());
        sample(&text(&mut store, Format::Text, Instant::now())).len()
    };
    assert_eq!(update(Some(Value::Double(1.0))), 2);
    assert_eq!(update(None), 1);
    assert!(store.families.iter().all(BTreeMap::is_empty));
}

#[test]
fn a_series_that_is_not_read_for_five_minutes_is_absent_until_it_is() {
    let mut store = store(&[Native, Dcgm(Old)], power(1.0).points);
    let later = Instant::now() + Duration::from_mins(6);
    assert_eq!(
        sample(&text(&mut store, Format::Text, later)),
        [r#"target_info{host_name="node"} 1"#]
    );
    store.update(&power(2.0), later);
    assert_eq!(sample(&text(&mut store, Format::Text, later)).len(), 2);
}

#[test]
fn clients_cause_one_rendering_a_tick_and_format() {
    let mut store = store(&[Native], power(1.0).points);
    let now = Instant::now();
    let mut at = |gzip| store.page(Format::Text, gzip, now).unwrap().body.as_ptr();
    let (first, zipped) = (at(false), at(true));
    assert_eq!((at(false), at(true)), (first, zipped));
    assert_ne!(first, zipped);
}

#[test]
fn a_compressed_page_is_the_page() {
    let mut store = store(&[Native], power(1.0).points);
    let plain = text(&mut store, Format::OpenMetrics, Instant::now());
    let zipped = store.page(Format::OpenMetrics, true, Instant::now()).unwrap();
    let mut unzipped = String::new();
    flate2::read::GzDecoder::new(&*zipped.body).read_to_string(&mut unzipped).unwrap();
    assert_eq!(unzipped, plain);
    assert_eq!(zipped.points, 1);
}

#[test]
fn pages_that_clients_hold_are_bounded() {
    let mut store = store(&[Native], power(1.0).points);
    let held = store.hold(vec![0; MAX_HELD]);
    let page = |store: &mut Store| store.page(Format::Text, false, Instant::now()).map(drop);
    assert!(matches!(page(&mut store), Err(PageError::Held)));
    drop(held);
    page(&mut store).unwrap();
}

#[test]
fn on_a_full_page_an_engine_s_series_are_left_out_and_counted_and_a_device_s_are_there() {
    let long = "x".repeat(MAX_PAGE / 8);
    let engines = (0..9).map(|_| {
        let labels = labels(Some((&attr::GPU_MODEL, long.as_str())));
        point(engine::RUNNING.def(), &labels, Some(Value::Int(1)))
    });
    let mut store = store(&[Native], engines.chain(power(1.0).points).collect());
    let page = text(&mut store, Format::Text, Instant::now());
    assert!(page.contains("\ngpu_power_watts{") && page.len() < MAX_PAGE + MAX_PAGE / 4);
    assert_eq!((sample(&page).len(), store.left_out), (8 + 2, 1));
    text(&mut store, Format::Text, Instant::now());
    assert_eq!(store.left_out, 1, "rendered once a tick");
}

#[test]
fn every_family_has_its_place_on_the_page() {
    let mut order = ORDER.clone();
    order.sort_unstable();
    assert!(order.into_iter().eq(0..FAMILIES.len()));
}

#[test]
fn the_scope_is_on_every_series_where_it_is_wanted() {
    let mut store = store(&[Native], power(1.0).points);
    store.options.scope_labels = true;
    let text = text(&mut store, Format::Text, Instant::now());
    let first = sample(&text)[0].to_owned();
    assert!(
        first.contains(
            "gpu_index=\"0\",host_name=\"node\",otel_scope_name=\"gpuwho\",otel_scope_version="
        ),
        "{first}"
    );
}

/// The readings of a device of two MIG instances.
fn mig_device() -> Vec<Point> {
    let mut info = AttrSet::new();
    let facts = [
        (&attr::GPU_UUID, "GPU-1"),
        (&attr::GPU_INDEX, "0"),
        (&attr::GPU_VENDOR, "nvidia"),
        (&attr::GPU_MODEL, "H100"),
        (&attr::GPU_PCI_ADDRESS, "0000:3b:00.0"),
        (&attr::GPU_DRIVER_VERSION, "580.1"),
    ];
    for (key, value) in facts {
        info.set(key, value);
    }
    let one = |labels, metric, value| point(metric, &labels, Some(value));
    let with = |key, value| labels(Some((key, value)));
    let mut on_instance = AttrSet::new();
    on_instance.set(&attr::GPU_UUID, "GPU-1");
    on_instance.set(&attr::GPU_MIG_GPU_INSTANCE, 7_i64);
    on_instance.set(&attr::GPU_MIG_PROFILE, "1g.10gb");
    let on_instance = |key, value: &str| {
        let mut set = on_instance.clone();
        set.set(key, value);
        Arc::new(Labels::new(set))
    };
    vec![
        one(Arc::new(Labels::new(info)), device::INFO.def(), Value::Int(1)),
        one(with(&attr::GPU_CLOCK_TYPE, "sm"), device::CLOCK_SPEED.def(), Value::Double(1.98e9)),
        one(with(&attr::GPU_CLOCK_TYPE, "video"), device::CLOCK_SPEED.def(), Value::Double(1e9)),
        one(labels(None), device::ENERGY.def(), Value::Double(2.0)),
        one(
            on_instance(&attr::GPU_MEMORY_STATE, "used"),
            instance::MEMORY_USAGE.def(),
            Value::Int(3 << 20),
        ),
        one(
            on_instance(&attr::GPU_PIPE, "tensor"),
            gpm::INSTANCE_PIPE_ACTIVE.def(),
            Value::Double(0.5),
        ),
    ]
}

#[test]
fn dcgm_s_names_have_its_labels_units_and_instances() {
    let mut store = store(&[Dcgm(Old)], mig_device());
    let device = "gpu=\"0\",UUID=\"GPU-1\",pci_bus_id=\"00000000:3B:00.0\",device=\"nvidia0\",\
                  modelName=\"H100\",Hostname=\"node\",DCGM_FI_DRIVER_VERSION=\"580.1\"";
    let part = format!("{device},GPU_I_PROFILE=\"1g.10gb\",GPU_I_ID=\"7\"");
    let expected = [
        format!("DCGM_FI_DEV_SM_CLOCK{{{device}}} 1980"),
        format!("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{device}}} 2000"),
        format!("DCGM_FI_DEV_XID_ERRORS{{{device}}} 0"),
        format!("DCGM_FI_DEV_FB_USED{{{part}}} 3"),
        format!("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{part}}} 0.5"),
        "target_info{host_name=\"node\"} 1".to_owned(),
    ];
    let plain = text(&mut store, Format::Text, Instant::now());
    assert_eq!(sample(&plain), expected);
    assert!(plain.contains("# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n"));
    let metrics = text(&mut store, Format::OpenMetrics, Instant::now());
    assert!(metrics.contains("# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\n"));
}

#[test]
fn dcgm_s_newer_names_have_base_units_and_the_last_xid() {
    let mut points = mig_device();
    points.push(point(event::XID_LAST.def(), &labels(None), Some(Value::Int(79))));
    points.push(point(
        device::UTILIZATION.def(),
        &labels(Some((&attr::GPU_TASK, "general"))),
        Some(Value::Double(0.5)),
    ));
    let mut store = store(&[Dcgm(New)], points);
    let device = "gpu=\"0\",UUID=\"GPU-1\",pci_bus_id=\"00000000:3B:00.0\",device=\"nvidia0\",\
                  modelName=\"H100\",hostname=\"node\",DCGM_FI_SYSTEM_DRIVER_VERSION=\"580.1\"";
    let part = format!("{device},GPU_I_PROFILE=\"1g.10gb\",GPU_I_ID=\"7\"");
    let expected = [
        format!("DCGM_FI_DEV_SM_CLOCK_HERTZ{{{device}}} 1980000000"),
        format!("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL{{{device}}} 2"),
        format!("DCGM_FI_DEV_GPU_UTIL_RATIO{{{device}}} 0.5"),
        format!("DCGM_FI_DEV_XID_ERROR{{{device}}} 79"),
        format!("DCGM_FI_DEV_FB_USED_BYTES{{{part}}} 3145728"),
        format!("DCGM_FI_PROF_TENSOR_UTIL_RATIO{{{part}}} 0.5"),
        "target_info{host_name=\"node\"} 1".to_owned(),
    ];
    let plain = text(&mut store, Format::Text, Instant::now());
    assert_eq!(sample(&plain), expected);
    assert!(plain.contains("# HELP DCGM_FI_DEV_SM_CLOCK_HERTZ SM clock frequency\n"), "{plain}");
}

#[test]
fn another_vendor_s_device_has_no_dcgm_names() {
    let mut points = mig_device();
    let mut info = points[0].labels.to_set();
    info.set(&attr::GPU_VENDOR, "amd");
    points[0].labels = Arc::new(Labels::new(info));
    let mut store = store(&[Dcgm(Old)], points);
    assert_eq!(sample(&text(&mut store, Format::Text, Instant::now())).len(), 1);
}

use super::*;
use crate::nodes::fixture::VENDORS;
use gpuwho_kubernetes::pod_resources::CdiDevice;
use std::path::Path;

const GPU: &str = "GPU-11111111-2222-3333-4444-555555555555";
const MIG: &str = "MIG-0f3a1b2c-3d4e-5f60-7182-93a4b5c6d7e8";

fn plugin(resource: &str, id: &str) -> Option<Named> {
    let dir = tempfile::tempdir().unwrap();
    drm(dir.path(), "card1", "0000:4d:00.0");
    plugin_on(dir.path(), resource, id)
}

fn plugin_on(root: &Path, resource: &str, id: &str) -> Option<Named> {
    let (paths, extra) = (Paths::under(root), ["example.com/npu".into(), "corp/*".into()]);
    let names = NameContext::new(&paths, VENDORS, &extra);
    let devices = ContainerDevices {
        resource_name: resource.into(),
        device_ids: vec![id.into()],
        topology: None,
    };
    let allocated = names.plugin(&devices).pop()?;
    assert_eq!(
        (allocated.details.resource.as_deref(), allocated.id.as_str()),
        (Some(resource), id)
    );
    assert_eq!(allocated.is_shared, allocated.kind == GrantKind::Replica);
    Some((allocated.device, allocated.kind))
}

fn claim(driver: &str, device: &str, cdi: &[&str]) -> Option<Result<DeviceName, Unnamed>> {
    let dir = tempfile::tempdir().unwrap();
    drm(dir.path(), "renderD128", "0000:c1:00.0");
    drm(dir.path(), "renderD129", "amdgpu_xcp_3");
    claim_on(dir.path(), driver, device, cdi)
}

fn claim_on(
    root: &Path,
    driver: &str,
    device: &str,
    cdi: &[&str],
) -> Option<Result<DeviceName, Unnamed>> {
    let (paths, extra) = (Paths::under(root), ["npu.example.com".into()]);
    let names = NameContext::new(&paths, VENDORS, &extra);
    let resource = ClaimResource {
        cdi_devices: cdi.iter().map(|name| CdiDevice { name: (*name).into() }).collect(),
        driver_name: driver.into(),
        pool_name: "node-a".into(),
        device_name: device.into(),
        share_id: None,
    };
    let own = resource.cdi_devices.iter().map(|device| device.name.clone()).collect();
    let allocated = names.claim("my-claim", &resource, own)?;
    let claimed = DraDevice {
        driver: driver.into(),
        pool: "node-a".into(),
        device: device.into(),
        share: None,
        cdi: cdi.iter().map(|name| (*name).to_owned()).collect(),
    };
    let details = AllocationDetails {
        resource: Some("my-claim".into()),
        claimed: Some(Arc::new(claimed)),
        ..AllocationDetails::default()
    };
    assert_eq!((&allocated.details, allocated.kind), (&details, GrantKind::Claim));
    Some(allocated.device)
}

/// Links a DRM node to a device, as in sysfs.
fn drm(root: &Path, node: &str, device: &str) {
    let dir = root.join("sys/class/drm").join(node);
    fs::create_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(format!("../../../{device}"), dir.join("device")).unwrap();
}

fn by_uuid(uuid: &str) -> DeviceName {
    DeviceName::Uuid(GpuUuid::new(uuid))
}

fn by_pci(address: &str) -> DeviceName {
    DeviceName::Pci(address.into())
}

#[test]
fn every_plugins_ids_are_read_in_its_own_form() {
    use GrantKind::{Exclusive, Instance, Replica};
    let gke = |gpu_instance| {
        let device = "nvidia0".into();
        Ok(DeviceName::Instance { device, gpu_instance, compute_instance: Some(0) })
    };
    let old_mig = "MIG-GPU-11111111-2222-3333-4444-555555555555/1/0";
    for (resource, id, wanted) in [
        ("nvidia.com/gpu", GPU, (Ok(by_uuid(GPU)), Exclusive)),
        ("nvidia.com/gpu.shared", &format!("{GPU}::3"), (Ok(by_uuid(GPU)), Replica)),
        ("nvidia.com/mig-1g.10gb", MIG, (Ok(by_uuid(MIG)), Instance)),
        ("nvidia.com/mig-1g.10gb", &format!("{MIG}::0"), (Ok(by_uuid(MIG)), Replica)),
        ("nvidia.com/mig-1g.5gb", old_mig, (Ok(by_uuid(old_mig)), Instance)),
        ("nvidia.com/gpu", "nvidia2", (Ok(DeviceName::Minor(2)), Exclusive)),
        ("nvidia.com/gpu", "nvidia2/vgpu1", (Ok(DeviceName::Minor(2)), Replica)),
        ("nvidia.com/gpu", "nvidia0/gi7", (gke(7), Instance)),
        ("nvidia.com/gpu", "nvidia0/gi7/vgpu0", (gke(7), Replica)),
        ("amd.com/gpu", "0000:C1:00.0", (Ok(by_pci("0000:c1:00.0")), Exclusive)),
        ("amd.com/cpx_nps4", "amdgpu_xcp_30", (Err(Unnamed::Partition), Instance)),
        ("habana.ai/gaudi", "AN12345", (Ok(DeviceName::Serial("AN12345".into())), Exclusive)),
        ("gpu.intel.com/xe", "card1-0", (Ok(by_pci("0000:4d:00.0")), Replica)),
        ("gpu.intel.com/i915", "card7-0", (Err(Unnamed::Form), Replica)),
        ("google.com/tpu", "3", (Ok(DeviceName::IndexOf("tpu", 3)), Exclusive)),
        ("tenstorrent.com/n150", "0", (Ok(DeviceName::IndexOf("tenstorrent", 0)), Exclusive)),
        ("aws.amazon.com/neuron", "2", (Ok(DeviceName::IndexOf("neuron", 2)), Exclusive)),
        ("aws.amazon.com/neurondevice", "2", (Ok(DeviceName::IndexOf("neuron", 2)), Exclusive)),
        ("aws.amazon.com/neuroncore", "2", (Err(Unnamed::Partition), Instance)),
        ("example.com/npu", "1", (Ok(DeviceName::Index(1)), Exclusive)),
        ("corp/any-thing", GPU, (Ok(by_uuid(GPU)), Exclusive)),
    ] {
        assert_eq!(plugin(resource, id), Some(wanted), "{resource} {id}");
    }
}

/// Writes AMD's two boards, the second of them in two partitions, as sysfs and KFD have them.
fn boards(root: &Path, separator: char) {
    let put = |path: &str, text: &str| {
        let path = root.join("sys").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (address, unique) in [("0000:05:00.0", "11"), ("0000:15:00.0", "12")] {
        put(&format!("bus/pci/drivers/amdgpu/{address}/unique_id"), unique);
        put(&format!("bus/pci/devices/{address}/unique_id"), unique);
    }
    let xcp = format!("amdgpu_xcp{separator}0");
    for (node, (render, device, location, unique)) in [
        (128, "0000:05:00.0", 0x500, 0x11),
        (129, "0000:15:00.0", 0x1500, 0x12),
        (130, xcp.as_str(), 0x1501, 0x12),
    ]
    .into_iter()
    .enumerate()
    {
        drm(root, &format!("renderD{render}"), device);
        if device != xcp {
            put(&format!("bus/pci/devices/{device}/drm/renderD{render}/dev"), "");
        }
        let folder = format!("class/kfd/kfd/topology/nodes/{}", node + 1);
        put(&format!("{folder}/gpu_id"), &(500 + node).to_string());
        let text = format!("location_id {location}\ndrm_render_minor {render}\nunique_id {unique}");
        put(&format!("{folder}/properties"), &text);
    }
}

#[test]
fn a_partition_of_amds_is_named_by_its_platform_device_and_the_first_by_the_board() {
    let part = |gpu_instance| {
        let device = "dri/renderD129".into();
        Ok(DeviceName::Instance { device, gpu_instance, compute_instance: None })
    };
    for separator in ['_', '.'] {
        let dir = tempfile::tempdir().unwrap();
        boards(dir.path(), separator);
        for (id, wanted, kind) in [
            ("0000:05:00.0", Ok(by_pci("0000:05:00.0")), GrantKind::Exclusive),
            ("0000:15:00.0", part(0), GrantKind::Instance),
            ("amdgpu_xcp_0", part(1), GrantKind::Instance),
            ("amdgpu_xcp_1", Err(Unnamed::Partition), GrantKind::Instance),
        ] {
            let named = plugin_on(dir.path(), "amd.com/gpu", id);
            assert_eq!(named, Some((wanted, kind)), "{id}");
        }
        for (device, wanted) in [
            ("gpu-0-128", Ok(by_pci("0000:05:00.0"))),
            ("gpu-1-129", part(0)),
            ("gpu-1-130", part(1)),
        ] {
            assert_eq!(claim_on(dir.path(), "gpu.amd.com", device, &[]), Some(wanted), "{device}");
        }
    }
}

#[test]
fn a_neuron_core_names_its_device_if_all_devices_have_as_many_and_none_has_pairs() {
    let named = |counts: &[u32], core: &str| {
        let dir = tempfile::tempdir().unwrap();
        for (device, cores) in counts.iter().enumerate() {
            for core in 0..*cores {
                let folder = format!("sys/devices/virtual/neuron_device/neuron{device}");
                let folder = dir.path().join(folder).join(format!("neuron_core{core}/stats"));
                fs::create_dir_all(folder).unwrap();
            }
        }
        plugin_on(dir.path(), "aws.amazon.com/neuroncore", core).unwrap().0
    };
    let device = |index| Ok(DeviceName::IndexOf("neuron", index));
    assert_eq!(["0", "1", "2", "5"].map(|core| named(&[2, 2, 2], core)), [0, 0, 1, 2].map(device));
    for (counts, core) in [(&[2, 4][..], "0"), (&[8, 8], "0"), (&[2, 2], "x"), (&[], "0")] {
        assert_eq!(named(counts, core), Err(Unnamed::Partition), "{counts:?} {core}");
    }
}

#[test]
fn a_name_of_unknown_form_is_not_guessed() {
    for (resource, id) in [
        // NVIDIA's plugin never counts; another plugin's index may have another order.
        ("nvidia.com/gpu", "0"),
        // HAMi's shares: the kubelet's device is not the pod's.
        ("nvidia.com/gpu", &format!("{GPU}-3")),
        ("nvidia.com/gpu", "GPU-11111111"),
        ("nvidia.com/gpu", "nvidia"),
        ("nvidia.com/gpu", "nvidia0/gi"),
        ("nvidia.com/gpu", "nvidia0/gi1/ci0"),
        ("nvidia.com/gpu", "tegra"),
        ("amd.com/gpu", "1"),
        ("amd.com/gpu", "0000:c1:00"),
        ("gpu.intel.com/xe", "cardx-1"),
        ("tenstorrent.com/n150", "n150-a"),
    ] {
        let (device, _) = plugin(resource, id).unwrap();
        assert_eq!(device, Err(Unnamed::Form), "{resource} {id}");
    }
}

#[test]
fn a_resource_that_is_not_an_accelerator_is_ignored() {
    for resource in ["rdma/hca_shared", "intel.com/sriov", "example.com/nic", "cpu", "corpse/x"] {
        assert_eq!(plugin(resource, "0"), None, "{resource}");
    }
    assert_eq!(claim("dra.net", "eth1", &[]), None);
    assert_eq!(claim("compute-domain.nvidia.com", "channel-0", &[]), None);
}

#[test]
fn every_drivers_devices_are_read_in_its_own_form() {
    let nvidia = "gpu.nvidia.com";
    let cdi = "k8s.gpu.nvidia.com/claim=8f4b6d1c-0000-0000-0000-000000000000-gpu-1";
    let placed =
        |profile: &str, start| Ok(DeviceName::Placed { minor: 0, profile: profile.into(), start });
    for (driver, device, wanted) in [
        (nvidia, "gpu-1", Ok(DeviceName::Minor(1))),
        (nvidia, "gpu-0-mig-1g10gb-19-6", placed("1g10gb", 6)),
        // `1g.10gb+me` (toRFC1123Compliant).
        (nvidia, "gpu-0-mig-1g10gb-me-20-0", placed("1g10gb-me", 0)),
        // Of older drivers: the profile's number, start and size.
        (nvidia, "gpu-0-mig-19-4-1", Err(Unnamed::MigPlace)),
        (nvidia, "gpu-vfio-0", Err(Unnamed::Passthrough)),
        ("gpu.amd.com", "gpu-0-128", Ok(by_pci("0000:c1:00.0"))),
        ("gpu.amd.com", "gpu-1-129", Err(Unnamed::Partition)),
        ("gpu.intel.com", "0000-0f-00-0-0x56c0", Ok(by_pci("0000:0f:00.0"))),
        ("gaudi.intel.com", "0000-9a-00-0-0x1020", Ok(by_pci("0000:9a:00.0"))),
        ("npu.example.com", "2", Ok(DeviceName::Index(2))),
        ("npu.example.com", "left", Err(Unnamed::Form)),
    ] {
        assert_eq!(claim(driver, device, &[cdi]), Some(wanted), "{driver} {device}");
    }
}

#[test]
fn a_cdi_name_identifies_a_device_if_the_drivers_name_does_not() {
    let driver = "npu.example.com";
    for (cdi, wanted) in [
        (format!("nvidia.com/gpu={GPU}"), Ok(by_uuid(GPU))),
        ("nvidia.com/gpu=1".to_owned(), Ok(DeviceName::IndexOf("nvidia", 1))),
        ("k8s.gpu.nvidia.com/device=gpu-1".to_owned(), Ok(DeviceName::Minor(1))),
        ("nvidia.com/gpu=all".to_owned(), Err(Unnamed::Form)),
        ("nvidia.com/gpu=gpu-1".to_owned(), Err(Unnamed::Form)),
        ("other.com/thing=1".to_owned(), Err(Unnamed::Form)),
    ] {
        assert_eq!(claim(driver, "left", &[&cdi]), Some(wanted), "{cdi}");
    }
}

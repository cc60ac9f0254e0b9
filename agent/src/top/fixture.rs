//! A look at a host with three devices: a pod and a Slurm job share one, a user has one, one is lost.

use super::Look;
use crate::who::{Device, EngineView, HostReport, Process, Source, Totals};
use gpuwho_owners::attribute::view::OwnerView;

fn owner(pid: u32, user: &str, comm: &str) -> OwnerView {
    OwnerView {
        pid,
        user: user.into(),
        uid: Some(1000),
        comm: comm.into(),
        method: "cgroup".into(),
        ..OwnerView::default()
    }
}

fn device(index: u32, processes: Vec<Process>) -> Device {
    Device {
        uuid: format!("GPU-{index}"),
        index,
        vendor: "nvidia".into(),
        model: "NVIDIA H100 80GB HBM3".into(),
        state: "ok".into(),
        processes,
        ..Device::default()
    }
}

pub(super) fn report() -> HostReport {
    let pod = OwnerView {
        owner: Some("serving/llama-0 [server]".into()),
        namespace: Some("serving".into()),
        pod: Some("llama-0".into()),
        container: Some("server".into()),
        ..owner(10, "root", "vllm")
    };
    let job = OwnerView {
        owner: Some("slurm 777.0 task 3".into()),
        slurm_job: Some("777".into()),
        slurm_task: Some("3".into()),
        ..owner(11, "alice", "train")
    };
    of(devices(pod, job))
}

fn devices(pod: OwnerView, job: OwnerView) -> Vec<Device> {
    let on = |owner, gib: i64, busy| Process {
        owner,
        memory_bytes: Some(gib << 30),
        utilization: Some(busy),
        ..Process::default()
    };
    vec![
        Device {
            utilization: Some(0.97),
            memory_used_bytes: Some(70 << 30),
            memory_limit_bytes: Some(80 << 30),
            power_watts: Some(630.0),
            temperature_celsius: Some(86.0),
            ..device(0, vec![on(pod, 40, 0.6), on(job, 29, 0.3)])
        },
        Device {
            utilization: Some(0.03),
            memory_used_bytes: Some(1 << 29),
            memory_limit_bytes: Some(80 << 30),
            power_watts: Some(90.0),
            temperature_celsius: Some(35.0),
            ..device(1, vec![on(owner(12, "bob", "python3"), 0, 0.01)])
        },
        Device { state: "lost".into(), reason: "GPU is lost".into(), ..device(2, Vec::new()) },
    ]
}

/// With an engine of the pod, and a source that fails.
fn of(devices: Vec<Device>) -> HostReport {
    let engine = EngineView {
        owner: devices[0].processes[0].owner.clone(),
        engine: Some("vllm".into()),
        port: 8000,
        models: vec!["llama-3-70b".into()],
        tokens_per_second: Some(1234.0),
        running: Some(15),
        waiting: Some(3),
        ..EngineView::default()
    };
    let failing = Source {
        name: "kubelet".into(),
        state: "failing".into(),
        reason: "no answer".into(),
        remedy: "start it".into(),
        ..Source::default()
    };
    HostReport {
        host: "node-7".into(),
        totals: Totals::of(&devices),
        devices,
        engines: vec![engine],
        sources: vec![failing],
        ..HostReport::default()
    }
}

pub(super) fn look() -> Look {
    Look { who: report(), health: None, events: None }
}

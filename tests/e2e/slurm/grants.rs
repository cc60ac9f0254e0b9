//! What was granted beside what is done with it: devices of a real Slurm's jobs.

use crate::points::words;
use crate::slurm::cluster;
use crate::slurm::jobs::watch;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::amd::{On, Tree};
use gpuwho_tests::fakes::load;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::slurm::{BOB, Gpus, JobSpec, Plugin, Setup, Slurm};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::nodes::host_nodes;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

pub(crate) const ALLOCATION: &str = "gpu.allocation.info";

/// Readings over which states are compared.
pub(crate) const READINGS: usize = 5;

/// Where attributes about an owner and a grant begin.
const STARTS: [&str; 7] = [
    "gpu.index",
    "gpu.allocation.source",
    "gpu.allocation.kind",
    "slurm.job.id",
    "slurm.job.account",
    "k8s.pod.name",
    "k8s.container.name",
];

pub(crate) type Row = BTreeMap<String, String>;

/// What a point says of a grant.
fn row(point: &Value) -> Row {
    words(point, &STARTS)
}

/// The grants to these owners that points tell of: the jobs of other tests are on the same host.
pub(crate) fn granted(points: &[Value], owners: &[&str]) -> BTreeSet<Row> {
    let all = points.iter().filter(|point| is_grant(point, ALLOCATION, owners));
    all.filter(|point| point["ended"] != true).map(row).collect()
}

/// Those that have not ended at the last point.
pub(crate) fn granted_still(points: &[Value], owners: &[&str]) -> BTreeSet<Row> {
    let mut rows = BTreeSet::new();
    for point in points.iter().filter(|point| is_grant(point, ALLOCATION, owners)) {
        let row = row(point);
        let _known = if point["ended"] == true { rows.remove(&row) } else { rows.insert(row) };
    }
    rows
}

/// The job or the pod of a point.
pub(crate) fn owner(point: &Value) -> &str {
    let attributes = &point["attributes"];
    let job = attributes["slurm.job.id"].as_str();
    job.or_else(|| attributes["k8s.pod.name"].as_str()).unwrap_or_default()
}

pub(crate) fn is_grant(point: &Value, metric: &str, owners: &[&str]) -> bool {
    point["metric"] == metric && owners.contains(&owner(point))
}

/// The states of grants that have grown: device, owner, state.
pub(crate) fn grown(points: &[Value], owners: &[&str]) -> BTreeSet<[String; 3]> {
    let mut values: BTreeMap<[String; 3], Vec<f64>> = BTreeMap::new();
    for point in points.iter().filter(|point| is_grant(point, "gpu.allocation.time", owners)) {
        let text = |key: &str| point["attributes"][key].as_str().unwrap_or_default().to_owned();
        let key = [text("gpu.index"), owner(point).to_owned(), text("gpu.allocation.state")];
        values.entry(key).or_default().extend(point["value"].as_f64());
    }
    let grows = |values: &[f64]| values.first() < values.last();
    values.into_iter().filter(|(_, values)| grows(values)).map(|(key, _)| key).collect()
}

pub(crate) fn rows<const N: usize>(all: [[&str; 3]; N]) -> BTreeSet<[String; 3]> {
    all.map(|row| row.map(str::to_owned)).into()
}

/// Four devices, of which the first is at rest.
fn four(slurm: &Slurm) -> FakeNvml {
    let nvml = FakeNvml::install(slurm.folder(), "h100x8").unwrap();
    let text = fs::read_to_string(nvml.scenario()).unwrap();
    let busy = "utilization = { first = 50, device = 6 }";
    let fewer = text.replacen("[[device]]\ncount = 8", "[[device]]\ncount = 4", 1);
    let fewer = fewer.replacen(busy, "utilization = { first = 0, device = 25 }", 1);
    assert_eq!((text.matches(busy).count(), fewer.matches("count = 4").count()), (1, 1));
    fs::write(nvml.scenario(), fewer).unwrap();
    nvml
}

#[test]
fn each_gpu_of_a_v2_job_is_granted_to_it_used_or_not_until_it_ends() {
    // A device that a job of another test has too would be a part for each of them.
    let slurm = or_skip!(cluster(Setup { alone: true, ..Setup::of(Plugin::V2) }));
    let mut reported = watch(&slurm, four(&slurm));
    // Opens its only GPU and never computes; there is no context on it.
    let spec = JobSpec { user: BOB, account: "chem", ..JobSpec::default() };
    let lazy = slurm.sbatch(&spec).unwrap();
    let opened = slurm.wait_started(&lazy, 1).unwrap();
    assert_eq!(opened[0].held(), [0]);
    // Is granted two and told of none; it opens the first of them.
    let prefix: &[&str] = &["env", "-i"];
    let wasteful = slurm.sbatch(&JobSpec { gpus: 2, prefix, ..JobSpec::default() }).unwrap();
    let mut tasks = slurm.wait_started(&wasteful, 1).unwrap();
    assert_eq!(tasks[0].held(), [] as [u32; 0]);
    tasks[0].open(1).unwrap().unwrap();
    reported.nvml.set_processes(1, &[Some(tasks[0].pid())]).unwrap();
    let (lazy_id, wasteful_id) = (lazy.id.to_string(), wasteful.id.to_string());
    let ids = [lazy_id.as_str(), wasteful_id.as_str()];
    let grant = |gpu: &str, id: &str, account: &str| -> Row {
        crate::points::expected([
            ("gpu.index", gpu),
            ("gpu.allocation.source", "slurm"),
            ("gpu.allocation.kind", "exclusive"),
            ("slurm.job.id", id),
            ("slurm.job.account", account),
        ])
    };
    let first = grant("0", &lazy_id, "chem");
    let both = ["1", "2"].map(|gpu| grant(gpu, &wasteful_id, "ml"));
    let wanted: BTreeSet<Row> = both.into_iter().chain([first.clone()]).collect();
    reported.wait(&format!("the grants {wanted:#?}"), |points| {
        (granted_still(points, &ids) == wanted).then_some(())
    });
    // The process is listed, and its job known, by now.
    reported.wait_for_readings(1);
    let from = reported.wait_for_readings(READINGS);
    let points = &reported.points()[from..];
    assert_eq!(granted(points, &ids), wanted);
    let states = rows([
        ["0", &lazy_id, "idle"],
        ["1", &wasteful_id, "active"],
        ["2", &wasteful_id, "unused"],
    ]);
    assert_eq!(grown(points, &ids), states);

    reported.nvml.set_processes(1, &[None]).unwrap();
    drop(tasks);
    slurm.wait_ended(&wasteful).unwrap();
    reported.wait_for_readings(2);
    let from = reported.wait_for_readings(READINGS);
    let points = &reported.points()[from..];
    assert_eq!(granted(points, &ids), BTreeSet::from([first]));
    assert_eq!(grown(points, &ids), rows([["0", &lazy_id, "idle"]]));
}

/// Points of a file so far.
fn points_in(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_render_node_as_rsmi_finds_it_is_granted_to_the_job_that_uses_it() {
    let slurm = or_skip!(cluster(Setup { alone: true, gpus: Gpus::Amd, ..Setup::of(Plugin::V2) }));
    let folder = slurm.folder();
    let scenario = load("mi300x8").unwrap();
    let tree = Tree::new(&folder.join("amd"), &scenario, 100.0).unwrap();
    host_nodes(folder).unwrap();
    let below = |name: &str| folder.join("dev").join(name).display().to_string();
    let file = folder.join("points.jsonl");
    let config = Config {
        interval: Some("500ms".to_owned()),
        passwd: Some(slurm.passwd()),
        sys: Some(tree.sys()),
        nodes: Some(vec![below("kfd"), below("dri/renderD12*")]),
        file: Some(file.clone()),
        more: format!(
            "[slurm]\njobs = \"{}\"\n[nvidia]\nenabled = false\n",
            slurm.prolog_dir().display()
        ),
        ..Config::default()
    };
    let agent = Agent::start(folder, &config, None).unwrap();
    let job = slurm.sbatch(&JobSpec::default()).unwrap();
    let mut tasks = slurm.wait_started(&job, 1).unwrap();
    let id = job.id.to_string();
    // What it was granted, and not the other.
    assert!(tasks[0].open(129).unwrap().is_err());
    tasks[0].open(128).unwrap().unwrap();
    tree.compute(&On { pid: tasks[0].pid(), render: 128, bytes: 1 << 30 }).unwrap();
    let is_there = |name: &str, source: &str| {
        points_in(&file).iter().any(|point| {
            let on = &point["attributes"];
            let is_its = on["gpu.uuid"] == "GPU-e3a98f4e6c9d0100" && on["slurm.job.id"] == *id;
            let is_from = source.is_empty() || on["gpu.allocation.source"] == source;
            point["metric"] == name && is_its && is_from && point["value"].as_f64() == Some(1.0)
        })
    };
    let all = || {
        let is_granted = is_there("gpu.allocation.info", "slurm");
        (is_granted && is_there("gpu.owner.processes", "")).then_some(())
    };
    let found = until(Duration::from_mins(1), all);
    assert!(found.is_some(), "{:#?} {:#?}", agent.who(), agent.log());
    let others = points_in(&file).into_iter().filter(|point| {
        let on = &point["attributes"];
        let is_other = on["gpu.uuid"] != "GPU-e3a98f4e6c9d0100";
        point["metric"] == "gpu.allocation.info" && on["slurm.job.id"] == *id && is_other
    });
    assert_eq!(others.count(), 0);
}

#[test]
fn nothing_is_said_to_be_granted_to_a_v1_job_whose_use_is_its_own() {
    let slurm = or_skip!(cluster(Setup::of(Plugin::V1)));
    let mut reported = watch(&slurm, four(&slurm));
    let job = slurm.sbatch(&JobSpec { gpus: 2, ..JobSpec::default() }).unwrap();
    let tasks = slurm.wait_started(&job, 1).unwrap();
    reported.nvml.set_processes(1, &[Some(tasks[0].pid())]).unwrap();
    let id = job.id.to_string();
    reported.wait("the job's busy time", |points| {
        let is_it = |point: &&Value| {
            point["metric"] == "gpu.owner.busy.time"
                && point["attributes"]["slurm.job.id"] == id
                && point["value"].as_f64() > Some(0.0)
        };
        points.iter().any(|point| is_it(&point)).then_some(())
    });
    reported.wait_for_readings(READINGS);
    assert_eq!(granted(reported.points(), &[&id]), BTreeSet::new());
    assert_eq!(grown(reported.points(), &[&id]), BTreeSet::new());
}

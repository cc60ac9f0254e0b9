//! One tenant that fills the probe maps or drives the probe budget of others.

use super::usage::Attacker;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker;
use gpuwho_tests::nccl::{Rank, is_probed_here, library};
use gpuwho_tests::or_skip;
use gpuwho_tests::until::until;
use rustix::process::geteuid;
use serde_json::Value;
use std::fs::{Permissions, read_to_string, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_mins(2);
/// Where the agent tells.
const FILE: &str = "points.jsonl";
/// Hits a second and process: a hundredth of what one makes that calls without a pause.
const BUDGET: u64 = 10_000;
/// More than there are places for.
const MANY: usize = 1_200;

/// One library that everybody on the host uses, as under Slurm, and an agent that counts its calls.
struct Scene {
    agent: Agent,
    device: &'static str,
    library: PathBuf,
    folder: TempDir,
}

impl Scene {
    /// On a device of its own: other tests' agents are not to meet its attacker.
    fn new(device: &'static str) -> Result<Self, &'static str> {
        if !geteuid().is_root() {
            return Err("root, to attach probes");
        }
        is_probed_here()?;
        let folder = TempDir::new().unwrap();
        set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let library = library(folder.path()).unwrap();
        let config = Config {
            interval: Some("1s".to_owned()),
            nodes: Some(vec![device.to_owned()]),
            file: Some(folder.path().join(FILE)),
            more: format!("[nvidia]\nenabled = false\n[nccl]\nbudget = {BUDGET}\n"),
            ..Config::default()
        };
        let agent = Agent::start(folder.path(), &config, None).unwrap();
        Ok(Self { agent, device, library, folder })
    }

    /// Starts an attack and waits until it says that it has begun.
    fn attack(&self, name: &str, more: &[&str]) -> Attacker {
        let library = self.library.to_str().unwrap();
        let arguments: Vec<&str> =
            [self.device, library].into_iter().chain(more.iter().copied()).collect();
        Attacker::start(&mut attacker::command(name, &arguments).unwrap())
    }

    /// A job of somebody else's that begins now: between opening a device and its first communicator
    /// it takes longer than the agent to know whose it is.
    fn victim(&self) -> Rank {
        let mut rank = Rank::holding(Path::new(self.device), &self.library, &[]).unwrap();
        let pid = rank.pid();
        let is_known = |who: &Value| {
            let holders = who["holders"].as_array()?;
            holders.iter().any(|one| one["pid"] == pid && one["method"] != "pending").then_some(())
        };
        self.agent.wait_for("the job", WITHIN, is_known).unwrap();
        let ticks = || self.values("nccl.probe.wanted_time", ("none", Value::Null)).len();
        let begun = ticks();
        until(WITHIN, || (ticks() > begun + 1).then_some(())).unwrap();
        let id = rank.order("id").unwrap();
        assert_eq!(rank.order(&format!("init world 1 0 {id}")).unwrap(), "0");
        rank
    }

    /// What was told so far of a metric or an event; only its lines are parsed, for there are many.
    fn lines(&self, kind: &str, name: &str) -> Vec<Value> {
        let text = read_to_string(self.folder.path().join(FILE)).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole.lines().filter(|line| line.contains(name));
        let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line[kind] == name).collect()
    }

    /// Values of a metric with an attribute, in order.
    fn values(&self, metric: &str, (name, value): (&str, Value)) -> Vec<f64> {
        let points = self.lines("metric", metric).into_iter();
        let mine = points.filter(|point| point["attributes"][name] == value);
        mine.filter_map(|point| point["value"].as_f64()).collect()
    }

    /// Waits until so many calls of a process were told, and no more.
    fn wait_for_calls(&self, rank: &Rank, made: u32) {
        let of = ("process.pid", Value::from(rank.pid()));
        let counted = || self.values("nccl.collective.calls", of.clone()).last().copied();
        let all = || counted().filter(|counted| *counted >= f64::from(made));
        let found = until(WITHIN, all);
        let reported = || format!("{:?}: {:#?}", counted(), self.agent.log());
        assert_eq!(found, Some(f64::from(made)), "{}", reported());
    }

    /// The least part of the time in which a process's calls were seen.
    fn least_coverage(&self, rank: &Rank) -> f64 {
        let of = ("process.pid", Value::from(rank.pid()));
        self.values("nccl.communicator.coverage", of).into_iter().reduce(f64::min).unwrap()
    }

    /// What the source of collectives says of itself.
    fn reason(&self) -> String {
        let who = self.agent.who().unwrap();
        let sources = who["sources"].as_array().unwrap();
        let nccl = sources.iter().find(|source| source["name"] == "nccl").unwrap();
        nccl["reason"].as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn who_fills_the_maps_of_communicators_leaves_room_for_others_and_is_named() {
    let scene = or_skip!(Scene::new("/dev/full"));
    let first = scene.victim();
    scene.agent.wait_for_log("counting collective calls", WITHIN).unwrap();
    let attacker = scene.attack("fill-communicators", &[&MANY.to_string()]);
    let mut victim = scene.victim();
    for _ in 0..3 {
        assert_eq!(victim.order("call 4 ncclAllReduce world 1024 7").unwrap(), "0");
    }
    scene.wait_for_calls(&victim, 12);
    let of = ("gpuwho.drop.reason", Value::from("communicators_full"));
    let dropped = || scene.values("gpuwho.dropped", of.clone()).last().copied();
    let full = until(WITHIN, || dropped().filter(|dropped| *dropped > 0.0));
    assert!(full.is_some(), "nothing was refused");
    let of_nobody = ("process.owner", Value::from("nobody"));
    let counted = || scene.values("gpuwho.owner.refused", of_nobody.clone()).last().copied();
    assert!(until(WITHIN, counted).is_some(), "not counted by owner");
    drop(first);
    // What he held is free again once he has gone.
    drop(attacker);
    let mut next = scene.victim();
    next.order("call 5 ncclAllReduce world 1024 7").unwrap();
    scene.wait_for_calls(&next, 5);
}

#[test]
fn who_calls_without_a_pause_is_paused_and_others_calls_are_all_counted() {
    let scene = or_skip!(Scene::new("/dev/random"));
    let mut victim = scene.victim();
    scene.agent.wait_for_log("counting collective calls", WITHIN).unwrap();
    let _attacker = scene.attack("storm", &[]);
    let mut made = 0;
    let mut call = |victim: &mut Rank| {
        victim.order("pace 20 100 ncclAllReduce world 16 7").unwrap();
        made += 20;
        made
    };
    let paused = || {
        call(&mut victim);
        scene.lines("event", "nccl.probe.level.change").into_iter().find(|event| {
            let state = event["attributes"]["nccl.probe.level"].as_str();
            let is_his = event["attributes"]["process.owner"] == "nobody";
            is_his && state == Some("detached")
        })
    };
    assert!(until(WITHIN, paused).is_some(), "no change of level");
    // Some turns more.
    let mut made = 0;
    for _ in 0..50 {
        made = call(&mut victim);
    }
    scene.wait_for_calls(&victim, made);
    assert!(scene.least_coverage(&victim) > 0.999, "{}", scene.least_coverage(&victim));
    // A process of another test's that cannot be read is named before a budget.
    let is_named = until(WITHIN, || scene.reason().contains("nobody").then_some(()));
    assert!(is_named.is_some(), "{}", scene.reason());
}

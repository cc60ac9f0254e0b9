//! One tenant that fills what the kernel tells of everybody's processes, or hides from it.

use super::usage::{Attacker, cpu_time};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker;
use gpuwho_tests::attacker::ring::HIDER;
use gpuwho_tests::or_skip;
use gpuwho_tests::until::until;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::process::geteuid;
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_mins(1);
/// `/dev/full`.
const FULL: (u32, u32) = (1, 7);
/// Who opens the device beside the attack.
const AFFECTED: usize = 6;
/// For so long a flood is measured.
const FLOOD: Duration = Duration::from_secs(12);
/// Of the agent meanwhile, of a core, in a build for tests: below a tenth in one for use. It was 40 to 80 %.
const MAX_CPU: f64 = 0.25;
/// Where the agent tells.
const FILE: &str = "points.jsonl";

/// A device that everybody may open, and an agent whose next look at `/proc` is minutes away.
struct Scene {
    agent: Agent,
    device: PathBuf,
    /// A node that no driver serves.
    refusing: PathBuf,
    folder: TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// The agents watch one device number, and the attackers are one owner: one scene at a time.
static TURN: Mutex<()> = Mutex::new(());

impl Scene {
    fn new(hook: Option<&'static str>) -> Result<Self, &'static str> {
        Self::limited(hook, None)
    }

    /// With `agent.cpu_limit`.
    fn limited(hook: Option<&'static str>, cpu_limit: Option<f64>) -> Result<Self, &'static str> {
        if !geteuid().is_root() {
            return Err("root, to attach programs");
        }
        // A test that failed has left nothing.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::Builder::new().prefix("gpuwho-ring-").tempdir_in("/dev");
        let folder = folder.map_err(|_| "a /dev to make a node in")?;
        let [device, refusing] = ["device", "refusing"].map(|name| folder.path().join(name));
        for (node, (major, minor)) in [(&device, FULL), (&refusing, (unserved(), 1))] {
            let number = makedev(major, minor);
            mknodat(CWD, node, FileType::CharacterDevice, Mode::empty(), number)
                .map_err(|_| "a device node")?;
        }
        for (path, mode) in [(folder.path(), 0o755), (&*device, 0o666), (&*refusing, 0o666)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let config = Config {
            nodes: Some([&device, &refusing].map(|node| node.display().to_string()).to_vec()),
            file: Some(folder.path().join(FILE)),
            hook,
            cpu_limit,
            more: "[nvidia]\nenabled = false\n".to_owned(),
            ..Config::default()
        };
        let agent = Agent::start(folder.path(), &config, None).unwrap();
        let scene = Self { agent, device, refusing, folder, _turn: turn };
        if scene.source()["reason"].as_str().is_some_and(|reason| reason.contains("scanning /proc"))
        {
            return Err("BPF");
        }
        Ok(scene)
    }

    fn attack(&self, name: &str, more: &[&str]) -> Attacker {
        attack_on(&self.device, name, more)
    }

    /// A process of root's that holds the device.
    fn victim(&self) -> Victim {
        let device = File::open(&self.device).unwrap();
        Victim(Command::new("sleep").arg("1000").stdin(Stdio::from(device)).spawn().unwrap())
    }

    fn is_told(&self, pid: u32) -> bool {
        self.nodes_of(pid).is_some()
    }

    /// The nodes of a living process that is told; an earlier one may have had its number.
    fn nodes_of(&self, pid: u32) -> Option<Vec<Value>> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let start: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        let who = self.agent.who().unwrap();
        let mut holders = who["holders"].as_array().unwrap().iter();
        let holder =
            holders.find(|holder| holder["pid"] == pid && holder["start_ticks"] == start)?;
        holder["nodes"].as_array().cloned()
    }

    fn source(&self) -> Value {
        self.source_named("device_users").unwrap()
    }

    fn source_named(&self, name: &str) -> Option<Value> {
        let who = self.agent.who().unwrap();
        let sources = who["sources"].as_array().unwrap();
        sources.iter().find(|source| source["name"] == name).cloned()
    }

    /// What nobody was refused of a limit.
    fn refused(&self, limit: &str) -> Option<f64> {
        let text = fs::read_to_string(self.folder.path().join(FILE)).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole.lines().filter(|line| line.contains("gpuwho.owner.refused"));
        let points = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mine = |point: &Value| {
            let attributes = point["attributes"].as_object().unwrap();
            attributes.values().any(|value| value == limit)
        };
        points.filter(mine).filter_map(|point| point["value"].as_f64()).next_back()
    }

    /// Victims open the device during an attack: each is told at once, and the agent takes little.
    fn see_all_beside(&self, attack: &Attacker) {
        let (began, spent) = (Instant::now(), cpu_time(&self.agent, None));
        let mut affected = Vec::new();
        for _ in 0..AFFECTED {
            affected.push(self.victim());
            let pid = affected.last().unwrap().0.id();
            let opened = Instant::now();
            let reported = until(Duration::from_secs(3), || self.is_told(pid).then_some(()));
            assert!(reported.is_some(), "{pid} of {AFFECTED} is not told: {:#?}", self.source());
            println!("told after {:?}", opened.elapsed());
            thread::sleep(FLOOD / u32::try_from(AFFECTED).unwrap());
        }
        let took =
            cpu_time(&self.agent, None).saturating_sub(spent).div_duration_f64(began.elapsed());
        println!("{:.1} % of a core, beside {}", took * 100.0, attack.pid());
        assert!(took < MAX_CPU, "{took} of a core");
    }
}

fn attack_on(node: &Path, name: &str, more: &[&str]) -> Attacker {
    let node = node.to_str().unwrap();
    let arguments: Vec<&str> = [node].into_iter().chain(more.iter().copied()).collect();
    Attacker::start(&mut attacker::command(name, &arguments).unwrap())
}

/// A major number for experiments that no driver of this kernel has.
fn unserved() -> u32 {
    let served = fs::read_to_string("/proc/devices").unwrap();
    let is_served = |major: &u32| {
        served.lines().any(|line| line.trim_start().starts_with(&format!("{major} ")))
    };
    (240..255).find(|major| !is_served(major)).unwrap()
}

/// The child of an attack that has this name.
fn child_of(attack: &Attacker, name: &str) -> Option<u32> {
    let pid = attack.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let is_it = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_it)
}

/// Ends when dropped.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_that_fork_without_a_pause_hide_nobodys_opening_and_are_named() {
    let scene = or_skip!(Scene::new(None));
    for processes in ["3", "4"] {
        let attack = scene.attack("fork-flood", &[processes]);
        scene.see_all_beside(&attack);
        let source = scene.source();
        assert_eq!(source["state"], "degraded", "{source:#}");
        let reason = source["reason"].as_str().unwrap();
        assert!(reason.contains("beyond an owner's share"), "{reason}");
    }
    let refused = until(WITHIN, || scene.refused("process_records"));
    assert!(refused.is_some_and(|refused| refused > 1_000.0), "{refused:?}");
    // Once nothing is lost any more the source is whole.
    let whole = until(WITHIN, || (scene.source()["state"] == "ready").then_some(()));
    assert!(whole.is_some(), "{:#}", scene.source());
}

/// `agent.cpu_limit` looks at the agent's use every 30 seconds.
#[test]
fn under_a_limit_of_cpu_who_floods_is_heard_less_before_anybody_is_read_less_often() {
    let scene = or_skip!(Scene::limited(None, Some(5.0)));
    let attack = scene.attack("fork-flood", &["4"]);
    let degraded = || {
        let limit = scene.source_named("cpu_limit")?;
        (limit["state"] == "degraded").then_some(limit)
    };
    let limit = until(2 * WITHIN, degraded).unwrap_or_else(|| panic!("{:#}", scene.source()));
    let reason = limit["reason"].as_str().unwrap();
    assert!(reason.starts_with("owners' processes that fork and end cost much"), "{reason}");
    // He is named, and an opening of another's is told as before.
    scene.see_all_beside(&attack);
    assert!(
        until(WITHIN, || scene.refused("process_records")).is_some_and(|refused| refused > 0.0)
    );
}

#[test]
fn children_that_open_without_a_pause_hide_nobodys_opening_and_are_named() {
    let scene = or_skip!(Scene::new(None));
    let attack = scene.attack("open-flood", &["4"]);
    scene.see_all_beside(&attack);
    let refused = until(WITHIN, || scene.refused("openings"));
    assert!(refused.is_some_and(|refused| refused > 100.0), "{refused:?}");
}

#[test]
fn a_thread_with_a_table_of_descriptors_of_its_own_hides_no_opening() {
    // The hook whose openings the agent confirms in `/proc`.
    let scene = or_skip!(Scene::new(Some("cgroup")));
    let attack = scene.attack("own-files", &[]);
    let reported = until(WITHIN, || scene.is_told(attack.pid()).then_some(()));
    assert!(reported.is_some(), "{:#}", scene.source());
    // Without a hook the next look at `/proc` finds it.
    drop(scene);
    let scene = Scene::new(None).unwrap();
    let hidden = scene.attack("own-files", &[]);
    let config = Config {
        nodes: Some(vec![scene.device.display().to_string()]),
        bpf: Some(false),
        more: "[nvidia]\nenabled = false\n".to_owned(),
        ..Config::default()
    };
    let folder = TempDir::new().unwrap();
    let agent = Agent::start(folder.path(), &config, None).unwrap();
    let look = |who: &Value| {
        let holders = who["holders"].as_array()?;
        holders.iter().any(|holder| holder["pid"] == hidden.pid()).then_some(())
    };
    agent.wait_for("the hidden holder", WITHIN, look).unwrap();
}

#[test]
fn who_fills_his_own_share_and_the_scans_hides_no_opening_of_his_own() {
    let scene = or_skip!(Scene::new(None));
    // Without the flood the kernel tells; behind more descriptors than are looked at the device is not known.
    for [descriptors, flooders] in [["1000", "0"], ["1000", "3"], ["6000", "3"]] {
        let attack = scene.attack("hide", &[descriptors, flooders]);
        let hider = until(WITHIN, || child_of(&attack, HIDER)).unwrap();
        let opened = Instant::now();
        let nodes = until(WITHIN, || scene.nodes_of(hider));
        let nodes =
            nodes.unwrap_or_else(|| panic!("{descriptors} {flooders}: {:#}", scene.source()));
        assert_eq!(nodes.len(), usize::from(descriptors == "1000"), "{nodes:?}");
        println!("{descriptors} descriptors, {flooders} flooders: {:?}", opened.elapsed());
        if flooders != "0" {
            assert_eq!(scene.source()["state"], "degraded");
        }
    }
}

#[test]
fn who_uses_up_his_looks_makes_no_refused_opening_of_another_count() {
    // The hook whose openings the agent confirms in `/proc`.
    let scene = or_skip!(Scene::new(Some("cgroup")));
    let attack = attack_on(&scene.refusing, "refused", &[]);
    thread::sleep(Duration::from_secs(2));
    // This process is the victim: it holds no device, and has tried to.
    File::open(&scene.refusing).unwrap_err();
    let own = std::process::id();
    let reported = until(Duration::from_secs(8), || scene.is_told(own).then_some(()));
    assert!(reported.is_none(), "beside {}", attack.pid());
    let victim = scene.victim();
    let reported = until(WITHIN, || scene.is_told(victim.0.id()).then_some(()));
    assert!(reported.is_some(), "{:#}", scene.source());
}

//! Who is on the demo's GPUs.

use super::DemoError;
use crate::engine::{EngineSpec, FakeEngine};
use crate::fakes::Host;
use crate::stage::{Driver, Group, PodSpec, Qos, Stage};
use crate::vendors::BASES;
use crate::worker::Worker;
use crate::worker::script::Script;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

/// The demo's users, as the agent reads them.
pub const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
ollama:x:997:997::/usr/share/ollama:/bin/false
alice:x:1001:1001::/home/alice:/bin/sh
bob:x:1002:1002::/home/bob:/bin/sh
";

/// Where it all happens.
#[derive(Debug)]
pub enum Scenery {
    /// Real cgroups.
    Real(Stage),
    /// Without the rights for them.
    Bare(TempDir),
}

impl Scenery {
    /// A folder that goes with it.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Real(stage) => stage.folder(),
            Self::Bare(folder) => folder.path(),
        }
    }
}

/// Where a role's process is.
enum Place {
    Pod(PodSpec<'static>),
    /// The task of a job: 0 is the first job of the demo, 1 the next.
    Slurm(u32, u32),
    Service(&'static str),
    /// Where the demo was started.
    Login,
}

/// One process, with the children it forks.
struct Role {
    place: Place,
    comm: &'static str,
    uid: u32,
    gpus: &'static [u32],
    forks: u32,
}

const fn pod(namespace: &'static str, name: &'static str, container: &'static str) -> Place {
    Place::Pod(PodSpec {
        namespace,
        name,
        container,
        qos: Qos::Burstable,
        driver: Driver::Cgroupfs,
    })
}

const SERVER: Place = pod("serving", "llama-70b-0", "vllm");
const EMBEDDER: Place = pod("serving", "embedder-5d8f7c9b6d-x2x7k", "server");
const NOTEBOOK: Place = pod("research", "notebook-alice", "notebook");
const TRAINER: Place = Place::Pod(PodSpec {
    namespace: "vision",
    name: "resnet-train-0",
    container: "trainer",
    qos: Qos::Guaranteed,
    driver: Driver::Systemd,
});

/// Those who stay.
const CAST: [Role; 9] = [
    Role { place: SERVER, comm: "vllm", uid: 0, gpus: &[0, 1], forks: 2 },
    Role { place: EMBEDDER, comm: "python3", uid: 0, gpus: &[2], forks: 0 },
    Role { place: NOTEBOOK, comm: "ipykernel", uid: 1001, gpus: &[2], forks: 0 },
    Role { place: TRAINER, comm: "python3", uid: 0, gpus: &[3], forks: 2 },
    Role { place: Place::Slurm(0, 0), comm: "train", uid: 1001, gpus: &[5], forks: 0 },
    Role { place: Place::Slurm(0, 1), comm: "train", uid: 1001, gpus: &[6], forks: 0 },
    Role { place: Place::Slurm(1, 0), comm: "lmp", uid: 1002, gpus: &[6], forks: 0 },
    Role { place: Place::Service("ollama"), comm: "ollama", uid: 997, gpus: &[7], forks: 0 },
    Role { place: Place::Login, comm: "python3", uid: 1002, gpus: &[7], forks: 0 },
];

/// Who has an API server beside it, and what that serves at a time.
const ENGINE: &str = "vllm";
const REQUESTS: u64 = 3;

/// Those who come and go: one pod at a time.
const SHORT: [&str; 3] = ["eval-imagenet", "eval-coco", "eval-ade20k"];
const SHORT_GPU: u32 = 4;

/// Everybody on stage.
#[derive(Debug)]
pub struct Cast {
    // Dropped before the scenery, so that every worker ends by itself.
    actors: Vec<Actor>,
    /// The API server in the pod of `vllm`, whose page moves.
    engine: Option<FakeEngine>,
    short: Option<Actor>,
    turn: usize,
    jobs: BTreeMap<u32, u32>,
    /// What scripts call the devices.
    numbers: Vec<u32>,
    /// What they are.
    scenario: String,
    scenery: Scenery,
}

#[derive(Debug)]
struct Actor {
    worker: Worker,
    gpus: Vec<u32>,
    group: Option<Group>,
}

impl Cast {
    /// Starts everybody and tells the fake driver.
    pub fn enter(scenery: Scenery, host: &Host, scenario: &str) -> Result<Self, DemoError> {
        let mut cast = Self {
            actors: Vec::new(),
            engine: None,
            short: None,
            turn: 0,
            jobs: BTreeMap::new(),
            numbers: host.numbers(),
            scenario: scenario.to_owned(),
            scenery,
        };
        for role in &CAST {
            let actor = cast.start(role)?;
            if role.comm == ENGINE {
                cast.engine = start_engine(&actor, role.uid)?;
            }
            cast.actors.push(actor);
        }
        cast.next_pod(host)?;
        Ok(cast)
    }

    /// Serves some requests more.
    pub fn serve(&mut self) -> Result<(), DemoError> {
        let worked = self.engine.as_mut().map_or(Ok(()), |engine| engine.work(REQUESTS));
        worked.map_err(|source| DemoError::Os { what: "the engine", source })
    }

    /// Every process on a GPU.
    pub fn pids(&self) -> Vec<u32> {
        self.all().flat_map(Actor::pids).collect()
    }

    /// Ends the short pod and begins another.
    pub fn next_pod(&mut self, host: &Host) -> Result<(), DemoError> {
        if let Some(last) = self.short.take() {
            last.worker.stop();
            if let (Scenery::Real(stage), Some(group)) = (&mut self.scenery, &last.group) {
                stage.remove(group)?;
            }
        }
        let name = SHORT.get(self.turn % SHORT.len()).copied().unwrap_or("eval");
        self.turn += 1;
        let place = Place::Pod(PodSpec {
            namespace: "vision",
            name,
            container: "eval",
            qos: Qos::BestEffort,
            driver: Driver::Cgroupfs,
        });
        let role = Role { place, comm: "python3", uid: 0, gpus: &[SHORT_GPU], forks: 0 };
        self.short = Some(self.start(&role)?);
        self.set_processes_of_all(host)
    }

    /// Writes who is on each device for the fake drivers.
    fn set_processes_of_all(&self, host: &Host) -> Result<(), DemoError> {
        for gpu in host.numbers() {
            let on = self.all().filter(|actor| actor.gpus.contains(&gpu));
            let pids: Vec<_> = on.flat_map(Actor::pids).collect();
            host.set_processes(gpu, &pids)?;
        }
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = &Actor> {
        self.actors.iter().chain(&self.short)
    }

    fn start(&mut self, role: &Role) -> Result<Actor, DemoError> {
        // A host with fewer devices has more of the cast on each.
        let devices = self.numbers.iter().copied().cycle();
        let number = |gpu: &u32| devices.clone().nth(usize::try_from(*gpu).ok()?);
        let mut gpus: Vec<u32> = role.gpus.iter().filter_map(number).collect();
        gpus.dedup();
        let mut script = Script {
            comm: role.comm.to_owned(),
            uid: Some(role.uid),
            gpus: gpus.clone(),
            forks: role.forks,
            libtpu: tpu_scenario(&gpus, &self.scenario),
            ..Script::default()
        };
        let group = match &mut self.scenery {
            Scenery::Real(stage) => group(stage, &mut self.jobs, role)?,
            Scenery::Bare(_) => {
                script.bare = true;
                None
            }
        };
        let worker = Worker::start(group.as_ref(), &script)?;
        Ok(Actor { worker, gpus, group })
    }
}

/// The scenario for those whose processes serve the values of their chips themselves.
fn tpu_scenario(gpus: &[u32], scenario: &str) -> Option<String> {
    let [_, _, (tpu, _), (next, _), _] = BASES;
    gpus.iter().all(|gpu| (tpu..next).contains(gpu)).then(|| scenario.to_owned())
}

/// An engine's API server in the pod of its workers; nothing where there are no pods.
fn start_engine(workers: &Actor, uid: u32) -> Result<Option<FakeEngine>, DemoError> {
    let Some(group) = &workers.group else { return Ok(None) };
    let spec = EngineSpec { group: Some(group), uid: Some(uid), ..EngineSpec::default() };
    let engine = FakeEngine::start(&spec);
    engine.map(Some).map_err(|source| DemoError::Os { what: "the engine", source })
}

impl Actor {
    fn pids(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.worker.pid()).chain(self.worker.children().iter().copied())
    }
}

/// A role's cgroup; `jobs` remembers the random number of each of the demo's jobs.
fn group(
    stage: &mut Stage,
    jobs: &mut BTreeMap<u32, u32>,
    role: &Role,
) -> Result<Option<Group>, DemoError> {
    Ok(match &role.place {
        Place::Pod(spec) => Some(stage.pod(spec)?),
        Place::Slurm(job, task) => {
            let group = stage.slurm_task(role.uid, jobs.get(job).copied(), *task)?;
            let number = group.expected.slurm_job.as_ref().and_then(|text| text.parse().ok());
            jobs.extend(number.map(|number| (*job, number)));
            Some(group)
        }
        Place::Service(name) => Some(stage.service(name)?),
        Place::Login => None,
    })
}

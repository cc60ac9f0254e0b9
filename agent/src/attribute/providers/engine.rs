//! Docker's and Podman's own APIs, for containers outside pods: name, image, Compose and Swarm
//! labels, and the cgroup of the first process.
//!
//! One GET per container that a resolver misses, and a list a minute while there is something to
//! take back. The engine's answer is believed only at the place where the kernel has that
//! container's first process, so a directory that bears its id elsewhere is not taken for it.
//! containerd's own containers outside Kubernetes (nerdctl) are not asked for: they would take a
//! third protocol, with a namespace to guess.

use super::{LookupQueue, Lookups, ProviderContext};
use crate::attribute::names::{Change, ContainerFacts, LookupKey, Provider};
use crate::attribute::process;
use crate::catalog::agent::SourceState;
use crate::catalog::attributes::{self as attr, AttrKey, AttrSet};
use crate::collect::status::Report;
use crate::ids::ContainerId;
use crate::local::{Cause, LocalError, http_get};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// For every answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// How often what has ended is looked for.
const LOOK_THROUGH: Duration = Duration::from_mins(1);
/// How often an engine that is not there or has failed is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// A container that is being started has no process yet: asked again this much later,
const NOT_YET: Duration = Duration::from_millis(200);
/// and this often.
const MAX_TRIES: u8 = 10;
/// Questions that wait for an engine that does not answer; a host runs a few hundred containers.
const MAX_OPEN: usize = 1024;
/// The kubelet's label: a pod's container, which CRI tells of.
const IN_POD: &str = "io.kubernetes.pod.uid";

/// Labels that are told.
const LABELS: &[&AttrKey] = &[&attr::COMPOSE_PROJECT, &attr::COMPOSE_SERVICE, &attr::SWARM_SERVICE];

/// Docker.
pub(super) async fn docker(desk: ProviderContext, wants: LookupQueue) {
    let socket = desk.settings().containers.docker.clone();
    serve(desk, wants, "docker", socket).await;
}

/// Podman.
pub(super) async fn podman(desk: ProviderContext, wants: LookupQueue) {
    let socket = desk.settings().containers.podman.clone();
    serve(desk, wants, "podman", socket).await;
}

async fn serve(
    desk: ProviderContext,
    wants: LookupQueue,
    runtime: &'static str,
    socket: Option<PathBuf>,
) {
    let Some(socket) = socket else { return };
    let engine = Engine {
        context: desk,
        wants,
        runtime,
        socket,
        open: HashMap::new(),
        missed: false,
        reported: HashSet::new(),
        errors: 0,
    };
    engine.run().await;
}

/// One engine.
struct Engine {
    context: ProviderContext,
    wants: LookupQueue,
    runtime: &'static str,
    socket: PathBuf,
    /// Asked and not answered, with the times it was tried.
    open: HashMap<ContainerId, u8>,
    /// There were more.
    missed: bool,
    reported: HashSet<ContainerId>,
    errors: u64,
}

/// `GET /version`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Version {
    version: String,
}

/// One of `GET /containers/json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
}

/// `GET /containers/ID/json`, the part that is read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    name: String,
    state: State,
    config: Config,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    /// In the engine's PID namespace, which is the host's; 0 without a process.
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    status: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    #[serde(default)]
    image: String,
    /// `null` where there are none.
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

impl Engine {
    async fn run(mut self) {
        loop {
            let Err(error) = self.serve().await;
            let report = error.report();
            self.errors += u64::from(report.state != SourceState::Absent);
            self.context.report(&Report { errors: self.errors, ..report });
            self.context.apply();
            let asked = self.wants.until(Instant::now() + LOOK_AGAIN).await;
            self.note(&asked);
        }
    }

    /// Everything from the first answer to the failure.
    async fn serve(&mut self) -> Result<Infallible, LocalError> {
        let version: Version = self.get("/version").await?;
        let facts = format!("{} at {}", version.version, self.socket.display());
        let ready = Report::of(SourceState::Ready, facts, "");
        self.context.report(&Report { errors: self.errors, ..ready });
        self.answer().await?;
        self.context.apply();
        let mut look_through = interval(LOOK_THROUGH);
        look_through.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let pause = if self.open.is_empty() { LOOK_THROUGH } else { NOT_YET };
            tokio::select! {
                _ = look_through.tick() => self.look_through().await?,
                asked = timeout(pause, self.wants.next()) => {
                    if let Ok(asked) = &asked {
                        self.note(asked);
                    }
                    self.answer().await?;
                }
            }
        }
    }

    fn note(&mut self, asked: &Lookups) {
        self.missed |= asked.missed;
        for want in &asked.wants {
            if let LookupKey::Container(id) = want
                && self.open.len() < MAX_OPEN
                && is_plain(id)
            {
                self.open.insert(id.clone(), 0);
            }
        }
    }

    /// Questions were missed: any container may be meant.
    async fn note_all(&mut self) -> Result<(), LocalError> {
        for id in self.ids("/containers/json").await?.into_iter().take(MAX_OPEN) {
            self.open.entry(id).or_insert(0);
        }
        Ok(())
    }

    /// Asks for everything that is open. What fails for want of an answer stays open.
    async fn answer(&mut self) -> Result<(), LocalError> {
        if self.missed {
            self.note_all().await?;
            self.missed = false;
        }
        let open: Vec<_> = self.open.keys().cloned().collect();
        for id in open {
            let again = match self.inspect(&id).await {
                Ok(again) => again,
                // Another runtime's.
                Err(error) if error.cause == Cause::NotFound => false,
                Err(error) if matches!(error.cause, Cause::Answered { .. }) => {
                    self.errors += 1;
                    false
                }
                Err(error) => return Err(error),
            };
            match self.open.get_mut(&id).filter(|tries| again && **tries < MAX_TRIES) {
                Some(tries) => *tries += 1,
                None => drop(self.open.remove(&id)),
            }
        }
        Ok(())
    }

    /// Tells of one container; whether to ask again because it is only being started.
    async fn inspect(&mut self, id: &ContainerId) -> Result<bool, LocalError> {
        if self.context.ownership().names().container(id).is_some() {
            return Ok(false);
        }
        let inspected: Inspected = self.get(&format!("/containers/{id}/json")).await?;
        let labels = inspected.config.labels.unwrap_or_default();
        if inspected.id != id.as_str() || labels.contains_key(IN_POD) {
            return Ok(false);
        }
        if inspected.state.pid == 0 {
            return Ok(inspected.state.status == "created");
        }
        let paths = &self.context.settings().paths;
        let Some(cgroup) = process::container_cgroup(paths, inspected.state.pid, id) else {
            return Ok(false);
        };
        let mut details = AttrSet::new();
        for key in LABELS {
            let label =
                key.name.strip_prefix(attr::CONTAINER_LABEL).and_then(|key| labels.get(key));
            details.set_some(key, label.map(String::as_str));
        }
        let name = inspected.name.trim_start_matches('/');
        self.reported.insert(id.clone());
        let facts = ContainerFacts {
            id: id.clone(),
            name: some(name),
            image: some(&inspected.config.image),
            runtime: self.runtime,
            pod: None,
            cgroup: Some(cgroup),
            details,
        };
        self.context.ownership().put_container(Provider::Engine, facts);
        Ok(false)
    }

    /// Takes back what has ended.
    async fn look_through(&mut self) -> Result<(), LocalError> {
        if self.reported.is_empty() {
            return Ok(());
        }
        let running: HashSet<_> = self.ids("/containers/json").await?.into_iter().collect();
        let ended: Vec<_> = self.reported.difference(&running).cloned().collect();
        for id in ended {
            self.reported.remove(&id);
            self.context.ownership().gone(Provider::Engine, &Change::Container(id));
        }
        Ok(())
    }

    async fn ids(&self, path: &str) -> Result<Vec<ContainerId>, LocalError> {
        let listed: Vec<Listed> = self.get(path).await?;
        Ok(listed.iter().map(|one| ContainerId::new(&one.id)).collect())
    }

    async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, LocalError> {
        let answer: Bytes = http_get(&self.socket, path, DEADLINE).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| LocalError::garbled(&self.socket, path, &error))
    }
}

fn some(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| Arc::from(text))
}

/// Only what can stand in a path as it is.
fn is_plain(id: &ContainerId) -> bool {
    id.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

#[cfg(test)]
mod tests;

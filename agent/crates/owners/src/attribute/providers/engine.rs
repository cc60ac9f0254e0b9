//! Docker's and Podman's own APIs, for containers outside pods: name, image, Compose and Swarm
//! labels, and the cgroup of the first process.
//!
//! One GET for each requested container, and a list each minute while there are known containers.
//! An answer counts only for the cgroup in which the kernel has that container's first process, so
//! that a directory named like it elsewhere is not taken for it. containerd's own containers
//! outside Kubernetes (nerdctl) are not read: that would need a third protocol and a guessed
//! namespace.

use super::{LookupQueue, Lookups, ProviderContext};
use crate::attribute::names::{Change, ContainerFacts, LookupKey, Provider};
use crate::attribute::process;
use crate::local::{Cause, LocalError, http_get};
use bytes::Bytes;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::attributes::{AttrKey, AttrSet};
use gpuwho_model::ids::ContainerId;
use gpuwho_model::status::Report;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// Deadline of every answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Time between searches for ended containers.
const RELIST: Duration = Duration::from_mins(1);
/// Time between attempts to reach a failed engine, and between looks for an absent socket.
const RECONNECT: Duration = Duration::from_secs(5);
/// Time between lookups of a container that is being started and has no process yet,
const NOT_YET: Duration = Duration::from_millis(200);
/// and the number of these lookups.
const MAX_TRIES: u8 = 10;
/// Maximum number of waiting lookups; a host runs a few hundred containers.
const MAX_OPEN: usize = 1024;
/// The kubelet's label: CRI describes a pod's container.
const IN_POD: &str = "io.kubernetes.pod.uid";

/// Labels that become attributes.
const LABELS: &[&AttrKey] = &[&attr::COMPOSE_PROJECT, &attr::COMPOSE_SERVICE, &attr::SWARM_SERVICE];

/// Provides Docker's containers.
pub(super) async fn docker(context: ProviderContext, lookups: LookupQueue) {
    let socket = context.settings().containers.docker.clone();
    serve(context, lookups, "docker", socket).await;
}

/// Provides Podman's containers.
pub(super) async fn podman(context: ProviderContext, lookups: LookupQueue) {
    let socket = context.settings().containers.podman.clone();
    serve(context, lookups, "podman", socket).await;
}

async fn serve(
    context: ProviderContext,
    lookups: LookupQueue,
    runtime: &'static str,
    socket: Option<PathBuf>,
) {
    let Some(socket) = socket else { return };
    let engine = Engine {
        context,
        lookups,
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
    lookups: LookupQueue,
    runtime: &'static str,
    socket: PathBuf,
    /// Containers to look up, with the number of attempts.
    open: HashMap<ContainerId, u8>,
    /// Whether requests were missed.
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

/// An entry of `GET /containers/json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
}

/// The fields read of `GET /containers/ID/json`.
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
    /// A PID in the engine's namespace, which is the host's; 0 without a process.
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
    /// `null` if there are none.
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
            self.context.mark_ready();
            let lookups = if error.cause == Cause::Absent {
                self.lookups.until_socket(&self.socket, RECONNECT, RECONNECT).await
            } else {
                self.lookups.until(Instant::now() + RECONNECT).await
            };
            self.note(&lookups);
        }
    }

    /// Serves the engine from the first answer to a failure.
    async fn serve(&mut self) -> Result<Infallible, LocalError> {
        let version: Version = self.get("/version").await?;
        let facts = format!("{} at {}", version.version, self.socket.display());
        let ready = Report::of(SourceState::Ready, facts, "");
        self.context.report(&Report { errors: self.errors, ..ready });
        self.answer().await?;
        self.context.mark_ready();
        let mut relist = interval(RELIST);
        relist.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let pause = if self.open.is_empty() { RELIST } else { NOT_YET };
            tokio::select! {
                _ = relist.tick() => self.end_missing().await?,
                lookups = timeout(pause, self.lookups.next()) => {
                    if let Ok(lookups) = &lookups {
                        self.note(lookups);
                    }
                    self.answer().await?;
                }
            }
        }
    }

    fn note(&mut self, lookups: &Lookups) {
        self.missed |= lookups.missed;
        for key in &lookups.keys {
            if let LookupKey::Container(id) = key
                && self.open.len() < MAX_OPEN
                && is_plain(id)
            {
                self.open.insert(id.clone(), 0);
            }
        }
    }

    /// Adds every container, after missed requests.
    async fn note_all(&mut self) -> Result<(), LocalError> {
        for id in self.ids("/containers/json").await?.into_iter().take(MAX_OPEN) {
            self.open.entry(id).or_insert(0);
        }
        Ok(())
    }

    /// Looks up all open containers. Those without an answer stay open.
    async fn answer(&mut self) -> Result<(), LocalError> {
        if self.missed {
            self.note_all().await?;
            self.missed = false;
        }
        let open: Vec<_> = self.open.keys().cloned().collect();
        for id in open {
            let again = match self.inspect(&id).await {
                Ok(again) => again,
                // Another runtime's container.
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

    /// Looks up one container; returns whether to try again because it is being started.
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

    /// Reports the end of containers that are no longer listed.
    async fn end_missing(&mut self) -> Result<(), LocalError> {
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

/// Whether an id can be part of a URL path without encoding.
fn is_plain(id: &ContainerId) -> bool {
    id.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

#[cfg(test)]
mod tests;

//! One endpoint, as a part of the source: it is asked once an interval on a thread of its own, and
//! its series begin and end with it. A server that does not answer holds nothing up but its own
//! thread, until the deadline.

mod path;
mod serving;

use super::fetch::{FetchError, Fetcher, Media, Target, WITHIN};
use super::find::{Server, members_of};
use super::page::{PageError, PageReader, PageSummary};
use super::settings::StaticEndpoint;
use super::status::{Line, drift};
use super::table::{Engine, Version};
use super::{ENGINES, NAME, Shared, dcgm};
use crate::attribute::process::Living;
use crate::catalog::endpoint::{self as metric, FamilyDrift, PageOutcome};
use crate::collect::Collector;
use crate::collect::sockets::{accepted, held, network};
use crate::collect::status::Report;
use crate::engines::{EngineFacts, EngineId, Serving};
use crate::sample::Batch;
use path::{PagePath, paths};
use serde_json::Value;
use serving::TokenRate;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A tick waits for a page that came this fast the last time.
const QUICK: Duration = Duration::from_millis(100);
/// Two processes of one server do not begin closer to each other, in seconds.
const START_TOLERANCE: f64 = 0.001;
/// Bytes of an engine's version.
const MAX_VERSION: usize = 64;

/// A server that was found, as long as it is there.
#[derive(Clone, Debug)]
pub(super) struct Link(Arc<Mutex<Option<Server>>>);

impl Link {
    pub(super) fn new(server: Server) -> Self {
        Self(Arc::new(Mutex::new(Some(server))))
    }

    /// Takes what the server is now; `None`: it is gone.
    pub(super) fn put(&self, server: Option<Server>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    pub(super) fn get(&self) -> Option<Server> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where a page comes from.
#[derive(Debug)]
enum Origin {
    Found(Link),
    Configured(Target),
}

/// The collector of one endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    part: u32,
    every: Option<Duration>,
    id: EngineId,
    origin: Origin,
    path: PagePath,
    fetcher: Fetcher,
    reader: PageReader,
    /// Whether the server was asked for its version.
    is_version_asked: bool,
    /// Start of the server's process, from its page.
    started: Option<f64>,
    rate: TokenRate,
    shared: Shared,
    /// Whether the last page came within [`QUICK`].
    is_quick: bool,
    has_ended: bool,
}

/// Why there are no samples.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("the process that serves it has ended")]
    Gone,
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Page(#[from] PageError),
}

impl ReadError {
    fn outcome(&self) -> PageOutcome {
        match self {
            Self::Gone => PageOutcome::Unreachable,
            Self::Page(PageError::TooLong(_)) => PageOutcome::TooLarge,
            Self::Page(_) => PageOutcome::NotUnderstood,
            Self::Fetch(error) => error.outcome(),
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Gone => "",
            Self::Fetch(error) => error.remedy(),
            Self::Page(PageError::Empty) => "it has none before its first request",
            Self::Page(_) => "name the page's own address in engines.endpoints",
        }
    }
}

impl Endpoint {
    /// Of a server that was found.
    pub(super) fn found(part: u32, server: Server, shared: &Shared) -> io::Result<(Self, Link)> {
        let facts = EngineFacts {
            owner: Some(server.owner.owner),
            name: server.engine.map(|engine| engine.name),
            port: server.at.port(),
            ..EngineFacts::default()
        };
        let link = Link::new(server);
        let endpoint = Self::new(part, Origin::Found(link.clone()), facts, shared)?;
        Ok((endpoint, link))
    }

    /// Of the configuration.
    pub(super) fn configured(
        part: u32,
        endpoint: &StaticEndpoint,
        shared: &Shared,
    ) -> io::Result<Self> {
        let facts = EngineFacts {
            port: endpoint.port,
            address: Some(endpoint.host.as_str().into()),
            labels: endpoint.labels.clone(),
            ..EngineFacts::default()
        };
        Self::new(part, Origin::Configured(endpoint.target.clone()), facts, shared)
    }

    fn new(part: u32, origin: Origin, facts: EngineFacts, shared: &Shared) -> io::Result<Self> {
        let every = shared.every.unwrap_or(shared.interval);
        Ok(Self {
            part,
            every: shared.every,
            id: shared.engines.add(facts),
            origin,
            path: PagePath::default(),
            fetcher: Fetcher::new(&shared.large, every.min(WITHIN))?,
            reader: PageReader::new(),
            is_version_asked: false,
            started: None,
            rate: TokenRate::default(),
            shared: shared.clone(),
            is_quick: false,
            has_ended: false,
        })
    }

    /// The engine's number.
    pub(super) fn id(&self) -> EngineId {
        self.id
    }

    /// Reads the page once, for a person.
    pub(super) fn look(&mut self, out: &mut Batch) -> Line {
        self.read(out).0
    }

    /// Reads the page; gives the endpoint's standing.
    fn read(&mut self, out: &mut Batch) -> (Line, PageOutcome) {
        let server = match &self.origin {
            Origin::Found(link) => link.get(),
            Origin::Configured(_) => None,
        };
        let name = self.name(server.as_ref());
        let read = self.read_page(server.as_ref(), out);
        let (line, outcome) = match read {
            Ok(drift) => (Line { name, problem: None, drift }, PageOutcome::Read),
            Err(error) => {
                // A page that breaks off in the middle gives nothing.
                *out = Batch::of(out.of, out.time);
                self.rate = TokenRate::default();
                let process = server.as_ref().map(|server| server.owner.process);
                self.put_serving(Serving { process, ..Serving::default() });
                let problem = Some((error.to_string(), error.remedy()));
                (Line { name, problem, drift: String::new() }, error.outcome())
            }
        };
        let is_up = i64::from(outcome == PageOutcome::Read);
        out.push(metric::UP.sample(self.id, (), is_up));
        (line, outcome)
    }

    fn read_page(&mut self, server: Option<&Server>, out: &mut Batch) -> Result<String, ReadError> {
        let target = self.target(server)?;
        let page = get(&mut self.fetcher, &self.shared, server, &target, Media::Page);
        let page = page.inspect_err(|error| self.path.advance(error, paths(server)))?;
        let summary = self.reader.read(page, self.id, out)?;
        let started = summary.started.or(self.started);
        let has_restarted = matches!(self.origin, Origin::Configured(_))
            && differs(std::mem::replace(&mut self.started, started), started);
        // Another process answers: its counters are others, whether they fell or not. A found
        // engine's part ends with its process.
        let summary = if has_restarted {
            let facts = self.shared.engines.facts(self.id).unwrap_or_default();
            self.shared.engines.remove(self.id);
            self.id = self.shared.engines.add((*facts).clone());
            self.is_version_asked = false;
            self.rate = TokenRate::default();
            *out = Batch::of(out.of, out.time);
            self.reader.read(page, self.id, out)?
        } else {
            summary
        };
        let drift = drift(summary.unknown, summary.unknown_count, summary.missing);
        let families = [(FamilyDrift::Unknown, summary.unknown_count)];
        for (word, count) in
            families.into_iter().chain([(FamilyDrift::Missing, summary.missing.len())])
        {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            out.push(metric::FAMILIES.sample(self.id, word, count));
        }
        let engine = engine_of(&summary);
        let models = summary.models.to_vec();
        if engine.is_some_and(|engine| engine.name == dcgm::DCGM.name) {
            let counted = self.shared.counted_devices();
            dcgm::read(page, &self.shared.inventory, &|gpu| counted.contains(&gpu), out);
        }
        self.update_facts(server, engine);
        let process = server.map(|server| server.owner.process);
        let serving = Serving { process, models, ..self.rate.serving(out) };
        self.put_serving(serving);
        if !self.is_version_asked {
            self.is_version_asked = true;
            self.ask_version(server, &target, engine);
        }
        Ok(drift)
    }

    fn target(&self, server: Option<&Server>) -> Result<Target, ReadError> {
        match (&self.origin, server) {
            (Origin::Configured(target), _) => {
                let path = self.path.of(&target.path);
                Ok(Target { path, ..target.clone() })
            }
            (Origin::Found(_), None) => Err(ReadError::Gone),
            (Origin::Found(_), Some(server)) => Ok(self.path.target(server)),
        }
    }

    /// Updates owner and engine: the owner may be resolved later, the page names the engine.
    fn update_facts(&self, server: Option<&Server>, engine: Option<&'static Engine>) {
        let Some(known) = self.shared.engines.facts(self.id) else { return };
        let owner = server.map(|server| {
            let now = self.shared.ownership.attribution(server.owner.process);
            now.map_or(server.owner.owner, |now| now.owner)
        });
        let name = engine.map(|engine| engine.name).or(known.name);
        self.shared.engines.put(self.id, EngineFacts { owner, name, ..(*known).clone() });
    }

    /// What people see of it; an exporter serves nothing.
    fn put_serving(&self, serving: Serving) {
        let facts = self.shared.engines.facts(self.id).unwrap_or_default();
        if facts.name != Some(dcgm::DCGM.name) {
            self.shared.engines.set_serving(self.id, serving);
        }
    }

    /// Asks the server for its version, once: it is the same as long as the process lives.
    fn ask_version(
        &mut self,
        server: Option<&Server>,
        page: &Target,
        engine: Option<&'static Engine>,
    ) {
        let Some((path, key)) = engine.and_then(|engine| engine.signs.version) else { return };
        let target = Target { path: path.to_owned(), ..page.clone() };
        let answer = get(&mut self.fetcher, &self.shared, server, &target, Media::Json);
        let answer = answer.ok().and_then(|body| serde_json::from_slice::<Value>(body).ok());
        let version = answer.as_ref().and_then(|answer| answer.get(key)?.as_str());
        let is_plain = |text: &&str| {
            (1..=MAX_VERSION).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_graphic())
        };
        let Some(version) = version.filter(is_plain) else { return };
        self.reader.set_version(Version::parse(version));
        if let Some(known) = self.shared.engines.facts(self.id) {
            let version = Some(version.into());
            self.shared.engines.put(self.id, EngineFacts { version, ..(*known).clone() });
        }
    }

    fn name(&self, server: Option<&Server>) -> String {
        let facts = self.shared.engines.facts(self.id).unwrap_or_default();
        let engine = facts.name.unwrap_or("an engine");
        match (server, &facts.address) {
            (Some(server), _) => server.words(engine),
            (None, Some(host)) => format!("{engine} on {host}:{}", facts.port),
            (None, None) => format!("{engine} on port {}", facts.port),
        }
    }
}

/// Gets a page or a document.
fn get<'a>(
    fetcher: &'a mut Fetcher,
    shared: &Shared,
    server: Option<&Server>,
    target: &Target,
    media: Media,
) -> Result<&'a [u8], ReadError> {
    let paths = &shared.paths;
    let namespace = match server {
        Some(server) if shared.own_network != Some(server.network) => {
            let entered = network(paths, server.process, server.network);
            Some(entered.ok_or(ReadError::Gone)?)
        }
        _ => None,
    };
    let is_server = |at: SocketAddr, client: SocketAddr| {
        server.map_or(Some(true), |server| has_accepted(shared, server, (at, client)))
    };
    Ok(fetcher.get((target, media), namespace.as_ref(), &is_server)?)
}

/// Whether a process of the server's cgroup has accepted this connection: anybody of the same user
/// and network may share a port (`SO_REUSEPORT`). `None`: not accepted yet.
fn has_accepted(
    shared: &Shared,
    server: &Server,
    (at, client): (SocketAddr, SocketAddr),
) -> Option<bool> {
    let paths = &shared.paths;
    let Some(living) = Living::same(paths, server.process) else { return Some(false) };
    let inode = accepted(&living, at, client)?;
    let holds = |living: &Living| held(living).any(|one| one == inode);
    let others = || server.cgroup.as_deref().map(members_of).unwrap_or_default();
    let is_of_others =
        || others().into_iter().filter_map(|pid| Living::find(paths, pid)).any(|one| holds(&one));
    Some(holds(&living) || is_of_others())
}

/// Whether two processes began at other times, as far as both are known.
fn differs(before: Option<f64>, now: Option<f64>) -> bool {
    before.zip(now).is_some_and(|(before, now)| (before - now).abs() > START_TOLERANCE)
}

fn engine_of(summary: &PageSummary<'_>) -> Option<&'static Engine> {
    ENGINES.iter().copied().find(|engine| engine.name == summary.engine)
}

impl Collector for Endpoint {
    fn name(&self) -> &'static str {
        NAME
    }

    fn part(&self) -> u32 {
        self.part
    }

    fn every(&self) -> Option<Duration> {
        self.every
    }

    fn collect(&mut self, out: &mut Batch) {
        if matches!(&self.origin, Origin::Found(link) if link.get().is_none()) {
            self.has_ended = true;
            self.shared.endpoints.remove(self.part);
            self.shared.engines.remove(self.id);
            return;
        }
        let began = Instant::now();
        let (line, outcome) = self.read(out);
        self.is_quick = began.elapsed() < QUICK;
        self.shared.endpoints.put(self.part, line, outcome);
    }

    fn report(&self) -> Report {
        self.shared.endpoints.report()
    }

    fn is_awaited(&self) -> bool {
        self.is_quick
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }
}

#[cfg(test)]
mod tests;

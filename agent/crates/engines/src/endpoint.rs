//! One endpoint, as a part of the source: it is asked once an interval on a thread of its own, and
//! its series begin and end with it. A server that does not answer holds nothing up but its own
//! thread, until the deadline.

mod error;
mod path;
mod request;
mod serving;
mod version;

use super::fetch::{Fetcher, Media, Target, WITHIN};
use super::find::Server;
use super::page::{PageReader, PageSummary};
use super::settings::StaticEndpoint;
use super::status::{Line, drift};
use super::table::{Engine, Version};
use super::{ENGINES, NAME, Shared, dcgm};
use error::ReadError;
use gpuwho_collect::Collector;
use gpuwho_collect::cpu_limit::Importance;
use gpuwho_model::catalog::agent::OwnerLimit;
use gpuwho_model::catalog::endpoint::{self as metric, FamilyDrift, PageOutcome};
use gpuwho_model::ids::EngineId;
use gpuwho_model::labels::SeenLabels;
use gpuwho_model::sample::Batch;
use gpuwho_model::status::Report;
use gpuwho_owners::engines::{EngineFacts, Serving};
use gpuwho_sys::clock::thread_cpu;
use parking_lot::Mutex;
use path::{PagePath, paths};
use request::get;
use serving::TokenRate;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A tick waits for a page that came this fast the last time.
const QUICK: Duration = Duration::from_millis(100);
/// Two processes of one server do not begin closer to each other, in seconds.
const START_TOLERANCE: f64 = 0.001;

/// A server that was found, as long as it is there.
#[derive(Clone, Debug)]
pub(super) struct Link(Arc<Mutex<Option<Server>>>);

impl Link {
    pub(super) fn new(server: Server) -> Self {
        Self(Arc::new(Mutex::new(Some(server))))
    }

    /// Takes what the server is now; `None`: it is gone.
    pub(super) fn put(&self, server: Option<Server>) {
        *self.0.lock() = server;
    }

    pub(super) fn get(&self) -> Option<Server> {
        self.0.lock().clone()
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

impl Endpoint {
    /// Of a server that was found.
    pub(super) fn found(part: u32, server: Server, shared: &Shared) -> io::Result<(Self, Link)> {
        let facts = EngineFacts {
            owner: Some(server.owner.owner),
            name: server.engine.map(|engine| engine.name),
            port: server.at.port(),
            ..EngineFacts::default()
        };
        let owner = shared.ownership.key_of(Some(&server.owner));
        let labels = shared.places.take(owner, server.at.port());
        let link = Link::new(server);
        let endpoint = Self::new(part, Origin::Found(link.clone()), (facts, labels), shared)?;
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
        let origin = Origin::Configured(endpoint.target.clone());
        Self::new(part, origin, (facts, SeenLabels::default()), shared)
    }

    fn new(
        part: u32,
        origin: Origin,
        (facts, labels): (EngineFacts, SeenLabels),
        shared: &Shared,
    ) -> io::Result<Self> {
        let every = shared.every.unwrap_or(shared.interval);
        Ok(Self {
            part,
            every: shared.every,
            id: shared.engines.add(facts),
            origin,
            path: PagePath::default(),
            fetcher: Fetcher::new(&shared.large, every.min(WITHIN))?,
            reader: PageReader::sharing(&shared.drafting, labels),
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
        let read = self.read_within(server.as_ref(), out);
        self.fetcher.finish();
        let (line, outcome) = match read {
            Ok(line) => (Line { name, ..line }, PageOutcome::Read),
            Err(error) => {
                self.shared.fed.release(self.part);
                // A page that breaks off in the middle gives nothing.
                *out = Batch::of(out.of, out.time);
                self.rate = TokenRate::default();
                let process = server.as_ref().map(|server| server.owner.process);
                self.put_serving(Serving { process, ..Serving::default() });
                let problem = Some((error.to_string(), error.remedy()));
                (Line { name, problem, ..Line::default() }, error.outcome())
            }
        };
        let is_up = i64::from(outcome == PageOutcome::Read);
        out.push(metric::UP.sample(self.id, (), is_up));
        (line, outcome)
    }

    /// Reads the page where its owner has not taken too much of the agent's time.
    fn read_within(&mut self, server: Option<&Server>, out: &mut Batch) -> Result<Line, ReadError> {
        let owner = server.map(|server| self.shared.ownership.key_of(Some(&server.owner)));
        // The operator's own endpoints are read in any case.
        let Some(owner) = owner else { return self.read_page(server, out) };
        if !self.shared.accounts.is_free(owner, Instant::now()) {
            return Err(ReadError::OverCpuBudget);
        }
        let before = thread_cpu();
        let read = self.read_page(server, out);
        let spent = thread_cpu().saturating_sub(before);
        self.shared.accounts.charge(owner, Instant::now(), spent);
        read
    }

    fn read_page(&mut self, server: Option<&Server>, out: &mut Batch) -> Result<Line, ReadError> {
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
        let left_out = summary.left_out + summary.folded;
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
        read_devices(&self.shared, self.part, server, (engine, page), out)?;
        count_left_out(&self.shared, server, left_out);
        self.update_facts(server, engine);
        let process = server.map(|server| server.owner.process);
        let serving = Serving { process, models, ..self.rate.serving(out) };
        self.put_serving(serving);
        if !self.is_version_asked {
            self.is_version_asked = true;
            self.ask_version(server, &target, engine);
        }
        Ok(Line { drift, left_out, ..Line::default() })
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
        let version = answer.ok().and_then(|document| version::version(document, key));
        let Some(version) = version else { return };
        self.reader.set_version(Version::parse(&version));
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

/// Reads what an exporter's page says of devices.
fn read_devices(
    shared: &Shared,
    part: u32,
    server: Option<&Server>,
    (engine, page): (Option<&'static Engine>, &[u8]),
    out: &mut Batch,
) -> Result<(), ReadError> {
    if engine.is_none_or(|engine| engine.name != dcgm::DCGM.name) {
        shared.fed.release(part);
        return Ok(());
    }
    if server.is_some_and(|server| !dcgm::is_trusted(&shared.paths, server)) {
        return Err(ReadError::UntrustedExporter);
    }
    let counted = shared.counted_devices();
    shared.fed.feed(part, (page, &shared.inventory, &|gpu| counted.contains(&gpu)), out);
    Ok(())
}

/// Counts the series of a page that are too many, by the server's owner.
fn count_left_out(shared: &Shared, server: Option<&Server>, left_out: usize) {
    if left_out > 0 {
        let owner = shared.ownership.key_of(server.map(|server| &*server.owner));
        let count = u64::try_from(left_out).unwrap_or(u64::MAX);
        shared.ownership.refuse(owner, OwnerLimit::Series, count);
    }
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

    fn importance(&self) -> Importance {
        Importance::Extra
    }

    fn collect(&mut self, out: &mut Batch) {
        if matches!(&self.origin, Origin::Found(link) if link.get().is_none()) {
            self.has_ended = true;
            self.shared.endpoints.remove(self.part);
            self.shared.fed.release(self.part);
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

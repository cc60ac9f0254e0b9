//! One tick in which nobody comes and nobody goes.

use crate::scene::{self, BEGAN_NS, Host, Place, SECOND_NS, TICK};
use gpuwho::agent::configuration::Configuration;
use gpuwho_export::otlp::encode::{Encoder, Limits};
use gpuwho_export::otlp::settings::{RawOtlp, Settings, Signal};
use gpuwho_export::resource::Resource;
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::ids::{GpuId, ProcKey};
use gpuwho_model::paths::Paths;
use gpuwho_model::point::EnrichedBatch;
use gpuwho_model::sample::{Batch, Subject};
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::slurm::JobAllocations;
use gpuwho_owners::communicators::Communicators;
use gpuwho_owners::engines::Engines;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::inventory::DeviceName;
use gpuwho_owners::inventory::Inventory;
use gpuwho_pipeline::accounting::Accounting;
use gpuwho_pipeline::cost::receipts::{self, Receipts};
use gpuwho_pipeline::cost::{Carbon, Charge, Costs as Money};
use gpuwho_pipeline::identity::Registries;
use gpuwho_pipeline::series::SeriesRegistry;
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Ticks measured.
const RUNS: u32 = 201;
/// Ticks before them.
const WARM_UP: u32 = 5;
/// How often the table looks for every process in `/proc`, in seconds.
const SWEEP: u64 = 30;

/// CPU times in microseconds, and the allocations of the last tick.
#[derive(Default)]
struct Cost {
    micros: Vec<f64>,
    allocations: u64,
}

impl Cost {
    /// Runs a part of a tick.
    fn of(&mut self, mut part: impl FnMut()) {
        let mut took = 0.0;
        let allocated = allocation_counter::measure(|| {
            let before = thread_micros();
            part();
            took = thread_micros() - before;
        });
        self.micros.push(took);
        self.allocations = allocated.count_total;
    }

    fn median(&self) -> f64 {
        let mut sorted = self.micros.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn print(&self, what: &str) {
        println!("| {what} | {:.1} µs, allocations: {} |", self.median(), self.allocations);
    }
}

pub(crate) fn thread_micros() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap()).as_secs_f64()
        * 1e6
}

/// Everybody, and what a tick works with.
struct Tick {
    ownership: Ownership,
    inventory: Arc<Inventory>,
    gpus: Vec<GpuId>,
    processes: Vec<ProcKey>,
    registry: SeriesRegistry,
    accounting: Accounting,
    money: Money,
    receipts: Receipts,
    encoder: Encoder,
    allocations: JobAllocations,
    out: EnrichedBatch,
    _host: Host,
}

#[derive(Default)]
struct Costs {
    lookups: Cost,
    enrich: Cost,
    accounting: Cost,
    money: Cost,
    receipts: Cost,
    expire: Cost,
    refresh: Cost,
    encode: Cost,
    samples: usize,
    points: usize,
}

/// Measures and prints.
pub(crate) fn measure() {
    let mut tick = Tick::new();
    let mut costs = Costs::default();
    for number in 0..RUNS + WARM_UP {
        if number == WARM_UP {
            costs = Costs::default();
        }
        tick.run(number, &mut costs);
    }
    let sweep = sweep();
    println!(
        "{} processes of {} containers on {} devices; {} known; {} samples, {} points",
        scene::PROCESSES,
        scene::PARTIES,
        scene::DEVICES,
        scene::CONTAINERS,
        costs.samples,
        costs.points
    );
    costs.lookups.print("owners, in enrich");
    costs.expire.print("table, once a tick");
    costs.refresh.print("job allocations, once a tick");
    sweep.print("search for ends of 200 real processes, once in 30 s");
    costs.enrich.print("enrich, owners included");
    costs.accounting.print("accounting");
    costs.money.print("costs, with a price and carbon");
    costs.receipts.print("receipts");
    costs.encode.print(&format!("encode {} points", costs.points));
    let searches = TICK as f64 / SWEEP as f64;
    let attribution = costs.lookups.median()
        + costs.expire.median()
        + costs.refresh.median()
        + sweep.median() * searches;
    println!("| attribution of a tick at {TICK} s: the first four | {attribution:.1} µs |");
}

impl Tick {
    fn new() -> Self {
        let host = Host::new();
        let ownership = Ownership::with_clock(&host.paths, || BEGAN_NS);
        scene::observe_all(&ownership);
        let opens = |number| {
            let place = Place::of(number % scene::PARTIES);
            host.opens(&ownership, number, &place)
        };
        let processes: Vec<_> = (0..scene::PROCESSES).map(opens).collect();
        let (inventory, gpus) = scene::inventory();
        let raw = RawOtlp::default();
        let settings = Settings::resolve(Signal::Metrics, &raw, &raw, &|_| None).unwrap();
        let resource = Resource::new(&AttrSet::new(), &settings.resource_attributes);
        Self {
            registry: SeriesRegistry::new(Arc::clone(&inventory), ownership.clone()),
            accounting: Accounting::new(Duration::from_secs(TICK)),
            money: money(),
            receipts: receipts(),
            encoder: Encoder::new(&resource, Limits::default()),
            allocations: JobAllocations::default(),
            out: EnrichedBatch::default(),
            ownership,
            inventory,
            gpus,
            processes,
            _host: host,
        }
    }

    fn run(&mut self, number: u32, costs: &mut Costs) {
        let seconds = u64::from(number) * TICK;
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds);
        let mut batch = scene::batch(&self.gpus, &self.processes, at, number);
        let Self { ownership, inventory, accounting, registry, encoder, out, .. } = self;
        costs.accounting.of(|| accounting.account(&mut batch, ownership, inventory));
        let (money, receipts) = (&mut self.money, &self.receipts);
        let increments = accounting.increments();
        let mut charges: Vec<Charge> = Vec::with_capacity(increments.len());
        costs.money.of(|| {
            let note = |more: &[Charge]| charges.extend_from_slice(more);
            money.charge(increments, &mut batch, (ownership, inventory), note);
        });
        let (communicators, engines) = (&Communicators::default(), &Engines::default());
        let registries = Registries { inventory, ownership, communicators, engines };
        costs.receipts.of(|| {
            for charges in charges.chunk_by(|a, b| a.increment.gpu == b.increment.gpu) {
                receipts.charge(charges, at, &registries);
            }
            receipts.take(!charges.is_empty(), &mut batch, &registries);
            black_box(receipts.finish());
        });
        costs.lookups.of(|| look_up(&batch, ownership));
        costs.enrich.of(|| registry.enrich(&batch, out));
        out.points.sort_by_key(|point| std::ptr::from_ref(point.metric).addr());
        let mut bytes = 0;
        costs.encode.of(|| encoder.encode(out, &mut |body, _| bytes += black_box(body).len()));
        (costs.samples, costs.points) = (batch.samples.len(), out.points.len());
        assert!(out.points.iter().all(|point| point.value.is_some()), "the scene changed");
        out.points.clear();
        let grants = &self.allocations;
        costs.refresh.of(|| grants.refresh(ownership, |_| vec![DeviceName::Minor(0)]));
        // No search in `/proc`: the host's is of files, which is another cost.
        costs.expire.of(|| ownership.expire(BEGAN_NS + SECOND_NS));
    }
}

/// Costs as a site has them that uses everything.
fn money() -> Money {
    let file = std::env::temp_dir().join(format!("gpuwho-bench-{}.toml", std::process::id()));
    let text = "[cost]\nprices = [{ per_hour = 2.5 }]\nenergy_price = 0.2\ncarbon_intensity = 300\n\
                teams = [{ team = \"ml\", namespace = \"*\" }]\n";
    std::fs::write(&file, text).unwrap();
    let settings = Configuration::check(&file).unwrap().settings.cost;
    std::fs::remove_file(&file).unwrap();
    let carbon = Arc::new(Carbon::new(settings.carbon()));
    Money::new(settings, carbon, None)
}

fn receipts() -> Receipts {
    let settings = receipts::Settings { enabled: true, ..receipts::Settings::default() };
    Receipts::open(&settings, "node".into(), Duration::from_secs(TICK))
}

/// The lookups of owners that [`Enricher::enrich`] makes: one for neighbours of one subject.
fn look_up(batch: &Batch, ownership: &Ownership) {
    for same in batch.samples.chunk_by(|(_, a), (_, b)| a.subject == b.subject) {
        let Some((_, sample)) = same.first() else { continue };
        match sample.subject {
            Subject::Process(on) => drop(black_box(ownership.attribution(on.process))),
            Subject::GpuOwner(on) => drop(black_box(ownership.owner(on.owner))),
            _ => {}
        }
    }
}

/// Looking for 200 real processes in the real `/proc`.
fn sweep() -> Cost {
    let paths = Paths::default();
    let sleeps = |_| Command::new("sleep").arg("600").spawn().unwrap();
    let mut children: Vec<Child> = (0..scene::PROCESSES).map(sleeps).collect();
    let ownership = Ownership::new(&paths);
    for child in &children {
        ownership.process(child.id(), boot_time_ns() + SECOND_NS).unwrap();
    }
    let mut cost = Cost::default();
    for number in 0..RUNS + WARM_UP {
        if number == WARM_UP {
            cost = Cost::default();
        }
        cost.of(|| ownership.lost_evidence());
    }
    let holders = ownership.counts().holders;
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(holders, children.len());
    cost
}

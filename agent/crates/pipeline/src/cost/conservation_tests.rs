//! Random sequences of readings of two devices: in every case the shares add up, no counter falls,
//! and no time is counted in which a device was not read.
//!
//! Devices are whole, in MIG mode or in AMD's partitions, time-sliced (several owners with samples or replicas) or behind an MPS
//! server. The wall clock is set forward and back. The agent restarts, orderly and killed: the receipts of
//! all owners, what nobody had, and what the kill lost are together price times time, to the last unit.

use super::receipts::{Receipts, Settings};
use super::tests::priced;
use super::{Charge, Costs};
use crate::accounting::Amount;
use crate::accounting::fixture::{Read, Rig, TICK, push, time};
use crate::identity::Registries;
use gpuwho_model::catalog::NO_DIM;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::device::{self, DeviceState};
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::{GpuId, ProcKey};
use gpuwho_model::sample::{Batch, GpuOwner, Sample, Subject, Value};
use gpuwho_owners::communicators::Communicators;
use gpuwho_owners::engines::Engines;
use gpuwho_owners::inventory::DeviceName;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The number of processes; those above the known ones have no owner.
const PIDS: u32 = 12;
const KNOWN: u32 = 9;

/// A tick that is longer, or negative, is a step of the clock.
const STEADY: i64 = 100;
/// The price for an hour, which no number of nanoseconds divides.
const PRICE: &str = "[cost]\nprices = [{ per_hour = 2.999999999 }]";
const NANO_PER_HOUR: u128 = 2_999_999_999;

/// The MIG instances of a device.
const SLICES: [u32; 3] = [4, 2, 1];

/// A device's total and the owners' shares of it.
const PAIRS: [(&str, &str); 3] = [
    ("gpu.busy.time", "gpu.owner.busy.time"),
    ("gpu.memory.byte_seconds", "gpu.owner.memory.byte_seconds"),
    ("gpu.accounted.energy", "gpu.owner.energy"),
];

/// A device's value and the owners' parts of it.
const LEVELS: [(&str, &str); 2] =
    [("gpu.memory.usage", "gpu.owner.memory.usage"), ("gpu.power", "gpu.owner.power")];

/// What one device reports in one tick.
#[derive(Clone, Debug)]
enum Step {
    Missed,
    Read(Reads),
}

#[derive(Clone, Debug)]
struct Reads {
    busy: Option<f64>,
    used: Option<i64>,
    joules: Option<f64>,
    processes: Vec<(u32, Option<i64>, Option<f64>)>,
    unidentified: i64,
    /// The first process is an MPS server, the others are its clients.
    is_served: bool,
    /// In partitions: each value counted for one of [`SLICES`]; a process is in the slice that its
    /// number selects. Beside a value of the device they are AMD's, without one NVIDIA's in MIG mode.
    cut: Option<Vec<Option<f64>>>,
}

/// One tick: seconds since the last, what each device reports, the jobs with the first device
/// allocated, and what happens to the agent after it.
#[derive(Clone, Debug)]
struct Tick {
    seconds: i64,
    devices: [Step; 2],
    allocations: Vec<u32>,
    then: Then,
}

/// What happens to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Nothing,
    /// The state file is written.
    Saved,
    /// It ends and starts again.
    Restarted,
    /// It is killed, which writes nothing, and starts again.
    Killed,
}

fn fraction() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.0..=1.0, 2 => Just(0.0), 1 => Just(1.7), 1 => Just(f64::NAN)]
}

fn step() -> impl Strategy<Value = Step> {
    let process = (
        1..=PIDS,
        prop::option::weighted(0.9, 0_i64..90_000_000_000),
        prop::option::weighted(0.7, fraction()),
    );
    let reads = (
        prop::option::weighted(0.9, fraction()),
        prop::option::weighted(0.9, 0_i64..90_000_000_000),
        // Energy used since the last reading, or a counter that restarts.
        prop::option::weighted(
            0.9,
            prop_oneof![9 => 0.0..7000.0, 1 => Just(-1e6), 1 => Just(f64::NAN)],
        ),
        prop::collection::vec(process, 0..6),
        0_i64..2,
        prop::bool::weighted(0.3),
        prop::option::weighted(
            0.4,
            prop::collection::vec(prop::option::weighted(0.9, fraction()), SLICES.len()),
        ),
        prop::bool::ANY,
    );
    let reads = reads.prop_map(
        |(busy, used, joules, mut processes, unidentified, is_served, cut, is_amd)| {
            processes.sort_by_key(|(pid, ..)| *pid);
            processes.dedup_by_key(|(pid, ..)| *pid);
            let busy = busy.filter(|_| cut.is_none() || is_amd);
            Step::Read(Reads { busy, used, joules, processes, unidentified, is_served, cut })
        },
    );
    prop_oneof![8 => reads, 1 => Just(Step::Missed)]
}

fn tick() -> impl Strategy<Value = Tick> {
    let seconds = prop_oneof![8 => 1..15_i64, 1 => Just(0), 1 => Just(-100), 1 => Just(5000)];
    let allocations = prop::collection::vec(1..=4_u32, 0..4);
    let then = prop_oneof![
        6 => Just(Then::Nothing),
        2 => Just(Then::Saved),
        1 => Just(Then::Restarted),
        1 => Just(Then::Killed),
    ];
    (seconds, [step(), step()], allocations, then).prop_map(
        |(seconds, devices, allocations, then)| Tick { seconds, devices, allocations, then },
    )
}

/// A series: metric, subject, dimensions.
type Series = (&'static str, Subject, [u8; 2]);

/// The reported series, and the limits that they must keep.
struct Model {
    rig: Rig,
    costs: Costs,
    /// What the last batch was charged.
    charges: Vec<Charge>,
    known: Vec<ProcKey>,
    now: i64,
    round: usize,
    joules: [f64; 2],
    /// Seconds since the first tick on the clock that no one sets.
    passed: u64,
    /// When each device was read, if it was in the last tick.
    read_at: [Option<i64>; 2],
    /// The sum of the intervals between consecutive readings: the most time that may be counted.
    pauses: [f64; 2],
    /// The last value of every device series, and the sum of all increases of every owner series.
    sums: HashMap<Series, f64>,
    /// The last value of each owner series, with its round.
    reported: HashMap<Series, (f64, usize)>,
    /// The last round in which each device was read.
    emitted: HashMap<GpuId, usize>,
    bills: Bills,
}

impl Model {
    fn new() -> Self {
        Self::start(100_000, Bills::default())
    }

    /// An agent that goes on with these receipts.
    fn start(now: i64, bills: Bills) -> Self {
        let rig = Rig::new();
        let known = (1..=KNOWN).map(|pid| rig.process(pid, 1 + pid % 4)).collect();
        Self {
            rig,
            costs: priced(PRICE),
            charges: Vec::new(),
            known,
            now,
            bills,
            round: 0,
            joules: [0.0; 2],
            passed: 0,
            read_at: [None; 2],
            pauses: [0.0; 2],
            sums: HashMap::new(),
            reported: HashMap::new(),
            emitted: HashMap::new(),
        }
    }

    fn play(&mut self, tick: &Tick) -> Result<(), TestCaseError> {
        self.now += tick.seconds;
        // A step of the clock that people set; a tick has passed.
        let is_step = !(0..=STEADY).contains(&tick.seconds);
        let passed = if is_step { i64::try_from(TICK).unwrap() } else { tick.seconds };
        self.rig.clock_step += tick.seconds - passed;
        self.passed += if self.round > 0 { u64::try_from(passed).unwrap() } else { 0 };
        self.round += 1;
        let allocations = tick.allocations.iter().map(|job| (DeviceName::Index(0), *job));
        self.rig.allocation(&allocations.collect::<Vec<_>>());
        let at = time(u64::try_from(self.now).unwrap());
        let mut batch = Batch::new("nvidia", at);
        for (index, step) in tick.devices.iter().enumerate() {
            let gpu = self.gpu(index);
            match step {
                Step::Missed => {
                    batch.push(device::STATE.sample(gpu, DeviceState::Hung, 1));
                    self.read_at[index] = None;
                }
                Step::Read(reads) => push(&mut batch, gpu, at, &self.reading(index, reads)),
            }
        }
        let mut batch = self.rig.account(batch);
        self.charges.clear();
        let context = (&self.rig.ownership, &self.rig.inventory);
        let note = |more: &[Charge]| self.charges.extend_from_slice(more);
        self.costs.charge(self.rig.accounting.increments(), &mut batch, context, note);
        self.note(&batch)?;
        if tick.seconds != 0 {
            self.levels_add_up(&batch)?;
        }
        self.money_adds_up(&batch, u64::try_from(passed).unwrap())?;
        self.shares_add_up()?;
        self.bills.take(&self.rig, &self.charges, batch)
    }

    /// What happens to the agent after a tick.
    fn then(self, then: Then) -> Result<Self, TestCaseError> {
        let (Then::Restarted | Then::Killed) = then else {
            if then == Then::Saved {
                self.bills.receipts.save(Instant::now(), false);
            }
            let bills = self.bills.noted(then);
            return Ok(Self { bills, ..self });
        };
        self.counts_no_more_than_was_read()?;
        // No agent runs for a minute: nobody is charged for it.
        let model = Self::start(self.now + 60, self.bills.noted(then));
        model.bills.add_up()?;
        Ok(model)
    }

    fn reading(&mut self, index: usize, reads: &Reads) -> Read {
        let pause = self.read_at[index].map_or(0, |before| self.now - before);
        if (1..=i64::try_from(TICK * 3).unwrap()).contains(&pause) {
            self.pauses[index] += pause as f64;
        }
        self.read_at[index] = Some(self.now);
        let counter = reads.joules.map(|more| {
            self.joules[index] = (self.joules[index] + more).max(0.0);
            if more.is_nan() { more } else { self.joules[index] }
        });
        let key = |pid: u32| {
            let known = self.known.iter().find(|known| known.pid == pid);
            known.copied().unwrap_or(ProcKey { pid, start_ticks: 1 })
        };
        let processes = reads.processes.iter();
        let gpu = self.gpu(index);
        let instances =
            SLICES.map(|slices| self.rig.instance(&format!("MIG-{index}-{slices}"), gpu, slices));
        let places = || processes.clone().map(|(pid, ..)| instances[*pid as usize % SLICES.len()]);
        let counted = reads.cut.iter().flat_map(|counted| instances.into_iter().zip(counted));
        let counted = counted.filter_map(|(on, busy)| Some((on, (*busy)?))).collect();
        let (counted, utilized) =
            if reads.busy.is_some() { (Vec::new(), counted) } else { (counted, Vec::new()) };
        Read {
            // The last process may have no instance.
            inside: reads.cut.iter().flat_map(|_| places()).take(4).collect(),
            instances: reads.cut.iter().flat_map(|_| instances).collect(),
            counted,
            utilized,
            busy: reads.busy,
            used: reads.used,
            joules: counter,
            watts: reads.joules.filter(|watts| *watts > 0.0),
            processes: processes
                .clone()
                .map(|(pid, memory, sm)| (key(*pid), *memory, *sm))
                .collect(),
            servers: processes
                .clone()
                .take(reads.is_served.into())
                .map(|(pid, ..)| key(*pid))
                .collect(),
            unidentified: reads.unidentified,
        }
    }

    fn note(&mut self, batch: &Batch) -> Result<(), TestCaseError> {
        for (_, sample) in &batch.samples {
            let series = (sample.metric.name, sample.subject, sample.dims);
            let Value::Double(value) = sample.value else { continue };
            let Subject::GpuOwner(GpuOwner { gpu, .. }) = sample.subject else {
                self.sums.insert(series, value);
                continue;
            };
            // Costs go on while a device is not read; they are checked for themselves.
            let is_share = PAIRS.iter().any(|(_, share)| *share == sample.metric.name);
            if !is_share {
                continue;
            }
            let (before, round) = self.reported.get(&series).copied().unwrap_or_default();
            prop_assert!(round != self.round, "{:?} twice", sample);
            // A removed account restarts from zero; its earlier amount stays in the sum.
            let goes_on = self.emitted.get(&gpu) == Some(&round);
            prop_assert!(value >= before || !goes_on, "{:?} fell from {}", sample, before);
            let increase = if goes_on { value - before } else { value };
            *self.sums.entry(series).or_default() += increase;
            self.reported.insert(series, (value, self.round));
        }
        for (_, sample) in &batch.samples {
            if let Subject::Gpu(gpu) = sample.subject
                && sample.metric.name == "gpu.accounted.time"
            {
                self.emitted.insert(gpu, self.round);
            }
        }
        Ok(())
    }

    /// What owners have of a device at a reading is the device's own value.
    fn levels_add_up(&self, batch: &Batch) -> Result<(), TestCaseError> {
        for gpu in [self.gpu(0), self.gpu(1)] {
            let number = |value: &Value| match value {
                Value::Int(number) => *number as f64,
                Value::Double(number) => *number,
                Value::Histogram(_) => f64::NAN,
            };
            let samples = || batch.samples.iter().map(|(_, sample)| sample);
            let own = |metric: &str| {
                let of = |sample: &&Sample| sample.subject == Subject::Gpu(gpu);
                samples().filter(of).find(|sample| sample.metric.name == metric)
            };
            let parts = |metric: &str| {
                let of = |sample: &&Sample| matches!(sample.subject, Subject::GpuOwner(on) if on.gpu == gpu);
                let same = samples().filter(of).filter(|sample| sample.metric.name == metric);
                same.map(|sample| number(&sample.value)).sum::<f64>()
            };
            for (whole, part) in LEVELS {
                let Some(whole) = own(whole).map(|sample| number(&sample.value)) else { continue };
                let sum = parts(part);
                prop_assert!((sum - whole).abs() < 1e-5, "{part}: {sum} of {whole}");
            }
        }
        Ok(())
    }

    /// The owners' time and money of each device are the whole device's, to the last unit.
    fn money_adds_up(&self, batch: &Batch, passed: u64) -> Result<(), TestCaseError> {
        for gpu in [self.gpu(0), self.gpu(1)] {
            let on = |charge: &&Charge| charge.increment.gpu == gpu;
            let (mut ns, mut granted, mut money) = (0, 0, 0);
            for charge in self.charges.iter().filter(on) {
                match charge.increment.what {
                    Amount::Time(_, more) => {
                        ns += more;
                        money += charge.money.unwrap();
                    }
                    Amount::Granted(more) => granted += more,
                    _ => {}
                }
            }
            let passed = if self.round > 1 { passed * 1_000_000_000 } else { 0 };
            prop_assert_eq!(ns, passed, "nanoseconds of {:?}", gpu);
            prop_assert_eq!(money, u128::from(passed) * NANO_PER_HOUR);
            prop_assert!(granted <= passed, "{} of {} ns granted", granted, passed);
            let sum = |name: &str, is_it: &dyn Fn(Subject) -> bool| {
                let of = batch.samples.iter().map(|(_, sample)| sample);
                let of = of.filter(|sample| sample.metric.name == name && is_it(sample.subject));
                of.map(|sample| if let Value::Double(value) = sample.value { value } else { 0.0 })
                    .sum::<f64>()
            };
            let cost = sum("gpu.cost", &|subject| subject == Subject::Gpu(gpu));
            let of_gpu = |subject| matches!(subject, Subject::GpuOwner(on) if on.gpu == gpu);
            let owners = sum("gpu.owner.cost", &of_gpu);
            let price = NANO_PER_HOUR as f64 / 1e9;
            let expected = self.passed as f64 / 3600.0 * price;
            // A cent in a million.
            prop_assert!((cost - expected).abs() <= expected * 1e-8, "{} {}", cost, expected);
            prop_assert!((cost - owners).abs() <= cost * 1e-8, "{} of {}", owners, cost);
        }
        Ok(())
    }

    fn shares_add_up(&self) -> Result<(), TestCaseError> {
        for gpu in [self.gpu(0), self.gpu(1)] {
            for (total, share) in PAIRS {
                let total = self.of(gpu, total);
                let on = |subject| matches!(subject, Subject::GpuOwner(on) if on.gpu == gpu);
                let shares =
                    self.sums.iter().filter(|((name, on_it, _), _)| *name == share && on(*on_it));
                let sum: f64 = shares.map(|(_, value)| value).sum();
                prop_assert!(
                    (sum - total).abs() <= total * 1e-9,
                    "{}: {} of {}",
                    share,
                    sum,
                    total
                );
            }
        }
        Ok(())
    }

    fn counts_no_more_than_was_read(&self) -> Result<(), TestCaseError> {
        for (index, max) in self.pauses.into_iter().enumerate() {
            let of = |name| self.of(self.gpu(index), name);
            let (accounted, busy) = (of("gpu.accounted.time"), of("gpu.busy.time"));
            prop_assert!(accounted <= max + 1e-6, "{} of {} s", accounted, max);
            prop_assert!(busy <= accounted + 1e-6, "{} of {} s", busy, accounted);
            prop_assert!(of("gpu.unattributed.time") <= busy + 1e-6);
        }
        Ok(())
    }

    fn gpu(&self, index: usize) -> GpuId {
        self.rig.gpu(u16::try_from(index).unwrap())
    }

    fn of(&self, gpu: GpuId, metric: &'static str) -> f64 {
        let series = (metric, Subject::Gpu(gpu), [NO_DIM; 2]);
        self.sums.get(&series).copied().unwrap_or(0.0)
    }
}

/// Money by the name of a receipt; `None` is what nobody had.
type Bill = BTreeMap<Option<String>, u128>;

/// The receipts over all restarts, and what they must say.
struct Bills {
    folder: TempDir,
    receipts: Receipts,
    /// What was charged, without what kills lost.
    charged: Bill,
    /// The same when the state file was written.
    saved: Bill,
    /// What no agent remembers.
    lost: u128,
    /// Price times time of both devices.
    expected: u128,
}

impl Default for Bills {
    fn default() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let receipts = open(&folder);
        let (charged, saved) = <_>::default();
        Self { folder, receipts, charged, saved, lost: 0, expected: 0 }
    }
}

fn open(folder: &TempDir) -> Receipts {
    let settings = Settings {
        enabled: true,
        directory: None,
        max_files: 0,
        state: Some(folder.path().to_owned()),
        period: Duration::ZERO,
    };
    Receipts::open(&settings, "node".into(), Duration::from_secs(TICK))
}

impl Bills {
    /// Adds what the last batch charged.
    fn take(
        &mut self,
        rig: &Rig,
        charges: &[Charge],
        mut batch: Batch,
    ) -> Result<(), TestCaseError> {
        let (communicators, engines) = (Communicators::default(), Engines::default());
        let registries = Registries {
            inventory: &rig.inventory,
            ownership: &rig.ownership,
            communicators: &communicators,
            engines: &engines,
        };
        for charges in charges.chunk_by(|a, b| a.increment.gpu == b.increment.gpu) {
            self.receipts.charge(charges, batch.time, &registries);
        }
        self.receipts.take(!charges.is_empty(), &mut batch, &registries);
        for charge in charges {
            let Amount::Time(_, ns) = charge.increment.what else { continue };
            let owner = charge.increment.owner;
            let job = (owner > OwnerId::OTHER).then(|| {
                rig.ownership
                    .owner(owner)
                    .unwrap()
                    .details
                    .get(&attr::SLURM_JOB_ID)
                    .unwrap()
                    .to_string()
            });
            *self.charged.entry(job).or_default() += charge.money.unwrap();
            self.expected += u128::from(ns) * NANO_PER_HOUR;
        }
        self.add_up()
    }

    /// After the state file was written, or the agent has started again.
    fn noted(mut self, then: Then) -> Self {
        match then {
            Then::Nothing => return self,
            Then::Saved => {}
            Then::Restarted => self.receipts.save(Instant::now(), true),
            Then::Killed => {
                let sum = |bill: &Bill| {
                    bill.iter().filter(|(job, _)| job.is_some()).map(|(_, sum)| sum).sum::<u128>()
                };
                self.lost += sum(&self.charged) - sum(&self.saved);
                let nobody = self.charged.get(&None).copied().unwrap_or(0);
                self.charged = self.saved.clone();
                self.charged.insert(None, nobody);
            }
        }
        self.saved = self.charged.clone();
        if then != Then::Saved {
            self.receipts = open(&self.folder);
        }
        self
    }

    /// The receipts are what was charged, and all of it is price times time.
    fn add_up(&self) -> Result<(), TestCaseError> {
        let sum: u128 = self.charged.values().sum();
        prop_assert_eq!(sum + self.lost, self.expected);
        for (job, money) in &self.charged {
            let Some(job) = job else { continue };
            let report = self.receipts.report(job, None);
            let costs = report.receipts.iter().flat_map(|receipt| &receipt.cost);
            let found: f64 = costs.map(|cost| cost.total).sum();
            // Both are this integer, as a double.
            let expected = *money as f64 / 3.6e12 / 1e9;
            prop_assert!(
                (found - expected).abs() <= expected * 1e-14,
                "{job}: {found}, not {expected}"
            );
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn shares_add_up_to_their_device_whatever_happens(ticks in prop::collection::vec(tick(), 1..25)) {
        let mut model = Model::new();
        for tick in &ticks {
            model.play(tick)?;
            model = model.then(tick.then)?;
        }
        model.counts_no_more_than_was_read()?;
    }
}

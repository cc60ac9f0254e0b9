//! Scenarios over synthetic batches: each condition starts, is reported once and ends with
//! hysteresis; a healthy fleet raises nothing.

use super::rules::Figures;
use super::*;
use crate::event::{Moment, Observation};
use gpuwho_model::catalog::board::{self, RecoveryAction};
use gpuwho_model::catalog::device::{
    self, Clock, DeviceState, MemoryState, Sensor, Task, ThrottleReason,
};
use gpuwho_model::catalog::health::Condition;
use gpuwho_model::catalog::link::{
    self, ChipLink, FabricCondition, FabricHealth, FabricState, LinkState, TotalError,
};
use gpuwho_model::catalog::share::{self, Presence};
use gpuwho_model::catalog::wear::{
    self, EccCount, EccError, PcieError, RetirementCause, SpareRows,
};
use gpuwho_model::ids::OwnerId;
use gpuwho_model::sample::{GpuOwner, Sample, Value};
use gpuwho_owners::inventory::GpuInfo;
use std::path::Path;
use std::time::UNIX_EPOCH;

const TICK: f64 = 10.0;
const DEVICES: u16 = 8;

/// Eight devices of one model on one host, and their simulated time.
struct Fleet {
    monitor: HealthMonitor,
    inventory: Inventory,
    clock: f64,
    /// Seconds between two readings.
    tick: f64,
    batch: Batch,
}

impl Fleet {
    fn new() -> Self {
        Self::with(HealthMonitor::new(
            HealthSettings::default(),
            Duration::from_secs(10),
            vec!["nvidia"],
        ))
    }

    fn with(monitor: HealthMonitor) -> Self {
        let inventory = Inventory::default();
        for index in 0..DEVICES {
            let uuid = GpuUuid::new(&format!("GPU-{index}"));
            let info = GpuInfo::new(uuid, "nvidia", index.into());
            inventory.put(GpuInfo { model: Some("H100".into()), ..info });
        }
        let batch = Batch::new("nvidia", UNIX_EPOCH);
        Self { monitor, inventory, clock: 1000.0, tick: TICK, batch }
    }

    fn now(&self) -> Now {
        (self.clock, UNIX_EPOCH + Duration::from_secs_f64(1e9 + self.clock))
    }

    /// One tick; `change` replaces readings of the first device.
    fn tick(&mut self, change: &[Sample]) -> Vec<Observation> {
        let time = self.clock;
        self.tick_of(|gpu| {
            let mut samples = readings(gpu, time);
            if gpu == GpuId(0) {
                for sample in change {
                    set(&mut samples, sample.clone());
                }
            }
            samples
        })
    }

    fn tick_of(&mut self, readings: impl Fn(GpuId) -> Vec<Sample>) -> Vec<Observation> {
        self.clock += self.tick;
        let now = self.now();
        self.batch = Batch::new("nvidia", now.1);
        for gpu in (0..DEVICES).map(GpuId) {
            for sample in readings(gpu) {
                self.batch.push(sample);
            }
        }
        self.monitor.evaluate(&mut self.batch, &self.inventory, now)
    }

    /// Ticks for so many seconds; what was reported.
    fn run(&mut self, seconds: f64, change: &[Sample]) -> Vec<(EventKind, &'static str)> {
        let mut reported = Vec::new();
        let until = self.clock + seconds;
        while self.clock < until {
            reported.extend(self.tick(change));
        }
        reported.iter().map(described).collect()
    }

    fn event(&mut self, gpu: u16, what: Observation, source: EventSource) {
        let event = Event {
            what: Observation { place: Place::Gpu(GpuId(gpu)), ..what },
            at: Moment { time: self.now().1, boot_ns: 0 },
            seen: self.now().1,
            source,
            gpu: None,
            affected_owners: Vec::new(),
            owners: 0,
            count: 1,
            id: 1,
        };
        self.monitor.take_event(&event);
    }

    /// Writes what an agent that ends stores.
    fn store(&self, folder: &Path) {
        let state = Paths::under(folder).state;
        std::fs::create_dir_all(&state).unwrap();
        std::fs::write(state.join(store::FILE), self.monitor.text(self.now()).unwrap()).unwrap();
    }

    fn report(&self) -> HealthReport {
        self.monitor.report("node1", &self.inventory, self.clock)
    }

    fn value(
        &self,
        metric: &'static gpuwho_model::catalog::MetricDef,
        dims: [u8; 2],
    ) -> Option<i64> {
        let of = |sample: &Sample| {
            *sample.metric == *metric && sample.dims == dims && sample.subject == GpuId(0).into()
        };
        let found = self.batch.samples.iter().find(|(_, sample)| of(sample));
        found.map(|(_, sample)| match sample.value {
            Value::Int(value) => value,
            _ => panic!("{sample:?}"),
        })
    }
}

fn described(what: &Observation) -> (EventKind, &'static str) {
    (what.kind, what.condition.unwrap().condition.as_str())
}

fn set(samples: &mut Vec<Sample>, new: Sample) {
    let is_it = |old: &&mut Sample| *old.metric == *new.metric && old.dims == new.dims;
    match samples.iter_mut().find(is_it) {
        Some(old) => *old = new,
        None => samples.push(new),
    }
}

/// Work that comes and goes: half an hour of it in each hour.
fn is_busy(time: f64) -> bool {
    time % 3600.0 < 1800.0
}

/// A healthy device under changing load, with the small errors that healthy devices have.
fn readings(gpu: GpuId, time: f64) -> Vec<Sample> {
    let busy = is_busy(time);
    let phase = time % 3600.0;
    // Air-cooled: three minutes until it is warm.
    let warm = if busy { 1.0 - (-phase / 60.0).exp() } else { (-(phase - 1800.0) / 60.0).exp() };
    let halves = (time / 3600.0).floor() * 1800.0 + phase.min(1800.0);
    let spread = f64::from(gpu.0) * 0.01;
    let owner = GpuOwner { gpu, owner: OwnerId::OTHER };
    // A count that grows by one each so many seconds.
    let each =
        |seconds: f64| i64::try_from(Duration::from_secs_f64(time / seconds).as_secs()).unwrap();
    let mut samples = vec![
        device::UTILIZATION.sample(gpu, Task::General, if busy { 0.97 } else { 0.0 }),
        device::TEMPERATURE.sample(gpu, Sensor::Gpu, 34.0 + 38.0 * warm),
        device::TEMPERATURE_MARGIN.sample(gpu, (), 50.0 - 38.0 * warm),
        device::ENERGY.sample(gpu, (), 70.0 * time + 600.0 * halves),
        device::CLOCK_SPEED.sample(gpu, Clock::Sm, (1.7 + spread) * if busy { 1e9 } else { 2e8 }),
        device::MEMORY_USAGE.sample(gpu, MemoryState::Used, 1 << 30),
        device::THROTTLE_TIME.sample(gpu, ThrottleReason::SoftwareThermal, time * 0.001),
        device::THROTTLE_TIME.sample(gpu, ThrottleReason::PowerBrake, 3.0),
        wear::PCIE_GENERATION.sample(gpu, (), if busy { 5 } else { 1 }),
        wear::PCIE_GENERATION_LIMIT.sample(gpu, (), 5),
        wear::PCIE_WIDTH.sample(gpu, (), 16),
        wear::PCIE_WIDTH_LIMIT.sample(gpu, (), 16),
        wear::PCIE_REPLAYS.sample(gpu, (), each(600.0)),
        wear::PCIE_ERRORS.sample(gpu, PcieError::Fatal, 0),
        wear::ECC_ERRORS.sample(gpu, (EccError::Uncorrected, EccCount::Volatile), 2),
        wear::ECC_ERRORS.sample(gpu, (EccError::Corrected, EccCount::Volatile), each(60.0)),
        wear::REMAP_FAILED.sample(gpu, (), 0),
        wear::REMAP_PENDING.sample(gpu, (), 0),
        wear::SPARE_ROWS.sample(gpu, SpareRows::None, 0),
        wear::SPARE_ROWS.sample(gpu, SpareRows::Low, 0),
        wear::RETIREMENT_PENDING.sample(gpu, (), 0),
        wear::RETIRED_PAGES.sample(gpu, RetirementCause::Corrected, 3),
        wear::RETIRED_PAGES.sample(gpu, RetirementCause::Uncorrected, 1),
        wear::ECC_SRAM_EXCEEDED.sample(gpu, (), 0),
        link::NVLINKS.sample(gpu, LinkState::Active, if busy { 18 } else { 0 }),
        link::NVLINKS.sample(gpu, LinkState::Sleep, if busy { 0 } else { 18 }),
        link::NVLINK_ERRORS.sample(gpu, TotalError::Recovery, 4),
        link::NVLINK_ERRORS.sample(gpu, TotalError::RecoveryFailed, 0),
        link::FABRIC_STATE.sample(gpu, FabricState::Completed, 1),
        link::FABRIC_HEALTH.sample(gpu, FabricHealth::Healthy, 1),
        link::FABRIC_HEALTH.sample(gpu, FabricHealth::Unhealthy, 0),
        link::FABRIC_HEALTH.sample(gpu, FabricHealth::Limited, 0),
        link::FABRIC_CONDITION.sample(gpu, FabricCondition::Unregistered, 0),
        board::RECOVERY_ACTION.sample(gpu, RecoveryAction::None, 1),
        board::INFOROM_VALID.sample(gpu, (), 1),
        share::OWNER_PROCESSES.sample(owner, Presence::Listed, i64::from(busy)),
    ];
    samples.extend(ChipLink::all().map(|link| link::C2C_ACTIVE.sample(gpu, link, 1)));
    let state = |state| device::STATE.sample(gpu, state, i64::from(state == DeviceState::Ok));
    samples.extend(DeviceState::ALL.iter().map(|one| state(*one)));
    samples
}

fn state(of: DeviceState) -> Vec<Sample> {
    let one = |state: &DeviceState| device::STATE.sample(GpuId(0), *state, i64::from(*state == of));
    DeviceState::ALL.iter().map(one).collect()
}

#[test]
fn a_healthy_fleet_raises_nothing_in_hours_of_changing_load() {
    let mut fleet = Fleet::new();
    assert_eq!(fleet.run(8.0 * 3600.0, &[]), []);
    assert_eq!(fleet.report().verdict(), report::Verdict::Ok);
    assert_eq!(fleet.value(metric::SCORE.def(), [u8::MAX; 2]), Some(100));
}

/// What makes each condition that readings show, of memory and bus, and the seconds for which it has to
/// hold.
fn sick() -> Vec<(Condition, Vec<Sample>, f64)> {
    use Condition as C;
    let gpu = GpuId(0);
    let busy = device::UTILIZATION.sample(gpu, Task::General, 1.0);
    vec![
        (
            C::MemoryUncorrected,
            vec![wear::ECC_ERRORS.sample(gpu, (EccError::Uncorrected, EccCount::Volatile), 3)],
            0.0,
        ),
        (
            C::MemoryCorrected,
            vec![wear::ECC_ERRORS.sample(gpu, (EccError::Corrected, EccCount::Volatile), 50_000)],
            0.0,
        ),
        (C::MemoryRowsFailed, vec![wear::REMAP_FAILED.sample(gpu, (), 1)], 0.0),
        (C::MemoryRowsPending, vec![wear::REMAP_PENDING.sample(gpu, (), 1)], 0.0),
        (C::MemoryRowsLow, vec![wear::SPARE_ROWS.sample(gpu, SpareRows::Low, 2)], 0.0),
        (C::MemoryPagesPending, vec![wear::RETIREMENT_PENDING.sample(gpu, (), 1)], 0.0),
        (
            C::MemoryPagesRetired,
            vec![wear::RETIRED_PAGES.sample(gpu, RetirementCause::Corrected, 59)],
            0.0,
        ),
        (C::MemorySramExceeded, vec![wear::ECC_SRAM_EXCEEDED.sample(gpu, (), 1)], 0.0),
        (C::BusWidth, vec![busy.clone(), wear::PCIE_WIDTH.sample(gpu, (), 8)], 300.0),
        (C::BusGeneration, vec![busy, wear::PCIE_GENERATION.sample(gpu, (), 1)], 300.0),
        (C::BusReplays, vec![wear::PCIE_REPLAYS.sample(gpu, (), 1000)], 0.0),
        (C::BusErrors, vec![wear::PCIE_ERRORS.sample(gpu, PcieError::Fatal, 1)], 0.0),
    ]
}

/// The same of links, temperature and driver.
fn sick_elsewhere() -> Vec<(Condition, Vec<Sample>, f64)> {
    use Condition as C;
    let gpu = GpuId(0);
    vec![
        (
            C::LinkDown,
            vec![
                link::NVLINKS.sample(gpu, LinkState::Active, 17),
                link::NVLINKS.sample(gpu, LinkState::Sleep, 0),
            ],
            120.0,
        ),
        (C::LinkErrors, vec![link::NVLINK_ERRORS.sample(gpu, TotalError::Recovery, 5)], 0.0),
        (
            C::LinkChipDown,
            vec![link::C2C_ACTIVE.sample(gpu, ChipLink::all().next().unwrap(), 0)],
            120.0,
        ),
        (C::LinkFabric, vec![link::FABRIC_STATE.sample(gpu, FabricState::Completed, 0)], 600.0),
        (
            C::LinkFabricUnhealthy,
            vec![link::FABRIC_HEALTH.sample(gpu, FabricHealth::Limited, 1)],
            300.0,
        ),
        (
            C::LinkFabricUnhealthy,
            vec![link::FABRIC_CONDITION.sample(gpu, FabricCondition::Unregistered, 1)],
            300.0,
        ),
        (C::ThermalMargin, vec![device::TEMPERATURE_MARGIN.sample(gpu, (), 4.0)], 300.0),
        (C::ThermalHot, vec![device::TEMPERATURE.sample(gpu, Sensor::Gpu, 86.0)], 300.0),
        (C::DriverLost, state(DeviceState::Lost), 0.0),
        (C::DriverLost, state(DeviceState::Missing), 0.0),
        (C::DriverHung, state(DeviceState::Hung), 60.0),
        (C::DriverFailing, state(DeviceState::Failing), 120.0),
        (C::DriverMissing, state(DeviceState::NoDriver), 300.0),
        (
            C::DriverRecovery,
            vec![board::RECOVERY_ACTION.sample(gpu, RecoveryAction::None, 0)],
            60.0,
        ),
        (C::DriverInforom, vec![board::INFOROM_VALID.sample(gpu, (), 0)], 0.0),
    ]
}

#[test]
fn each_condition_starts_after_its_time_is_reported_once_and_ends() {
    for (condition, change, after) in sick().into_iter().chain(sick_elsewhere()) {
        let mut fleet = Fleet::new();
        fleet.clock = 36_000.0 + 600.0;
        let name = condition.as_str();
        // The ramp sees the jump of a reading; it has a test of its own.
        let is_it = |reported: Vec<(EventKind, &'static str)>| -> Vec<_> {
            reported.into_iter().filter(|(_, described)| *described != "thermal_ramp").collect()
        };
        assert_eq!(fleet.run(30.0, &[]), [], "{name}");
        if after > 0.0 {
            assert_eq!(is_it(fleet.run(after - TICK, &change)), [], "{name} starts too early");
        }
        let started = is_it(fleet.run(300.0, &change));
        assert_eq!(started, [(EventKind::HealthStarted, name)]);
        let dims = |of: &Figures| {
            use gpuwho_model::catalog::Dims as _;
            (condition, report::dim(of.severity)).indexes()
        };
        let rule = RULES.iter().find(|rule| rule.about.condition == condition).unwrap();
        let figures = rule.figures;
        assert_eq!(fleet.value(metric::CONDITION.def(), dims(&figures)), Some(1), "{name}");
        let others: Vec<_> = fleet.report().devices.into_iter().skip(1).collect();
        assert!(others.iter().all(|device| device.status == "ok"), "{name}: {others:?}");
        let report = &fleet.report().devices[0];
        assert_eq!(report.conditions[0].condition, name);
        assert_eq!(report.status, figures.severity.as_str());
        let window = match rule.signal {
            rules::Signal::Increase(_, window) => window * 1.1,
            _ => 0.0,
        };
        fleet.tick = if window > 3600.0 * 2.0 { 120.0 } else { 10.0 };
        let ended = is_it(fleet.run(window + figures.clear + 120.0, &[]));
        assert_eq!(ended, [(EventKind::HealthEnded, name)]);
        assert_eq!(fleet.value(metric::CONDITION.def(), dims(&figures)), Some(0), "{name}");
    }
}

#[test]
fn a_value_between_start_and_end_neither_ends_nor_starts_a_condition() {
    let hot = |celsius| vec![device::TEMPERATURE.sample(GpuId(0), Sensor::Gpu, celsius)];
    let off = "[health]\ndisabled = [\"thermal_ramp\"]";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gpuwho.toml");
    std::fs::write(&file, off).unwrap();
    let tables =
        gpuwho_model::config::Tables::load(Some(&file), &[], &[settings::SECTION], &[]).unwrap();
    let settings = HealthSettings::resolve(&tables).unwrap();
    let mut fleet =
        Fleet::with(HealthMonitor::new(settings, Duration::from_secs(10), vec!["nvidia"]));
    assert_eq!(fleet.run(1000.0, &hot(83.0)), []);
    assert_eq!(fleet.run(400.0, &hot(86.0)), [(EventKind::HealthStarted, "thermal_hot")]);
    assert_eq!(fleet.run(1000.0, &hot(83.0)), [], "83 °C is below the start and above the end");
    // Around both figures in turn: it never holds for its time.
    for _ in 0..10 {
        assert_eq!(fleet.run(120.0, &hot(79.0)), []);
        assert_eq!(fleet.run(30.0, &hot(86.0)), []);
    }
    assert_eq!(fleet.run(400.0, &hot(79.0)), [(EventKind::HealthEnded, "thermal_hot")]);
}

#[test]
fn a_link_that_saves_power_is_not_below_what_the_slot_has() {
    let mut fleet = Fleet::new();
    for _ in 0..720 {
        let time = fleet.clock;
        let reported = fleet.tick_of(|gpu| {
            let mut samples = readings(gpu, time);
            for idle in [
                device::UTILIZATION.sample(gpu, Task::General, 0.0),
                wear::PCIE_GENERATION.sample(gpu, (), 1),
                wear::PCIE_WIDTH.sample(gpu, (), 4),
            ] {
                set(&mut samples, idle);
            }
            samples
        });
        assert_eq!(reported, []);
    }
}

/// What was reported of one busy L4 in so many seconds.
fn l4(fleet: &mut Fleet, [lanes, generation]: [i64; 2]) -> Vec<(EventKind, &'static str)> {
    let busy = |gpu| {
        [
            device::UTILIZATION.sample(gpu, Task::General, 1.0),
            device::STATE.sample(gpu, DeviceState::Ok, 1),
            wear::PCIE_WIDTH.sample(gpu, (), lanes),
            wear::PCIE_WIDTH_LIMIT.sample(gpu, (), 16),
            wear::PCIE_GENERATION.sample(gpu, (), generation),
            wear::PCIE_GENERATION_LIMIT.sample(gpu, (), 4),
        ]
    };
    let mut reported = Vec::new();
    for _ in 0..60 {
        let ones = |gpu: GpuId| if gpu == GpuId(0) { busy(gpu).to_vec() } else { Vec::new() };
        reported.extend(fleet.tick_of(ones));
    }
    reported.iter().map(described).collect()
}

/// `aws/aws-parallelcluster-cookbook` 2803: the card has 16 lanes, the instance wires 8, and a guest sees the
/// card's own limit alone.
#[test]
fn a_card_that_never_had_more_lanes_in_its_slot_is_well() {
    let mut fleet = Fleet::new();
    assert_eq!(l4(&mut fleet, [8, 3]), []);
    let uuid = fleet.inventory.get(GpuId(0)).unwrap().uuid.clone();
    let shown = |lanes, generation| [Some(lanes), Some(generation)];
    let info = fleet.inventory.get(GpuId(0)).unwrap();
    fleet.inventory.register().identified(&info, UNIX_EPOCH);
    fleet.inventory.register().linked(&uuid, shown(8, 3));
    assert_eq!(l4(&mut fleet, [8, 3]), []);
    // It once had more: somebody touched the riser.
    fleet.inventory.register().linked(&uuid, shown(16, 4));
    let started =
        [(EventKind::HealthStarted, "bus_width"), (EventKind::HealthStarted, "bus_generation")];
    assert_eq!(l4(&mut fleet, [8, 3]), started);
    let reason = fleet.report().devices[0].conditions[0].reason.clone();
    assert_eq!(reason, "50 % of the expected PCIe lanes");
    assert!(fleet.inventory.register().forget_link(uuid.as_str()));
    fleet.inventory.register().linked(&uuid, shown(8, 3));
    let ended = [(EventKind::HealthEnded, "bus_width"), (EventKind::HealthEnded, "bus_generation")];
    assert_eq!(l4(&mut fleet, [8, 3]), ended);
}

#[test]
fn fewer_lanes_than_most_cards_of_the_model_are_a_warning_at_the_first_look_and_also_idle() {
    for (of_others, busy, expected) in [
        (16, 1.0, &["bus_width"][..]),
        (16, 0.0, &["bus_width"]),
        // All are wired alike.
        (8, 1.0, &[]),
    ] {
        let mut fleet = Fleet::new();
        let mut reported = Vec::new();
        for _ in 0..60 {
            let time = fleet.clock;
            reported.extend(fleet.tick_of(|gpu| {
                let mut samples = readings(gpu, time);
                let lanes = if gpu == GpuId(0) { 8 } else { of_others };
                set(&mut samples, device::UTILIZATION.sample(gpu, Task::General, busy));
                set(&mut samples, wear::PCIE_WIDTH.sample(gpu, (), lanes));
                samples
            }));
        }
        let names: Vec<_> = reported.iter().map(|what| described(what).1).collect();
        assert_eq!(names, expected, "{of_others} {busy}");
    }
}

#[test]
fn a_recovery_action_that_only_the_kernel_log_has_is_a_condition() {
    let advice = |to: &str| {
        let text = format!(
            "NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from 0x0 (None) to {to}"
        );
        let place = Place::Gpu(GpuId(0));
        let severity = crate::event::xid::verdict(154, &text).action.severity();
        Observation { code: Some(154), ..Observation::new(EventKind::Xid, place, severity, text) }
    };
    let of_library = board::RECOVERY_ACTION.sample(GpuId(0), RecoveryAction::None, 0);
    for (to, library, expected) in [
        ("0x2 (Node Reboot Required)", None, &["driver_fault"][..]),
        ("0x1 (GPU Reset Required)", None, &["driver_fault"]),
        ("0x3 (Drain P2P)", None, &[]),
        // NVML has it: one condition, not two.
        ("0x2 (Node Reboot Required)", Some(of_library), &["driver_recovery"]),
    ] {
        let mut fleet = Fleet::new();
        let mut names = Vec::new();
        for tick in 0..30 {
            if tick == 3 {
                fleet.event(0, advice(to), EventSource::Kmsg);
            }
            let time = fleet.clock;
            let all = fleet.tick_of(|gpu| {
                let mut samples = readings(gpu, time);
                samples.retain(|sample| *sample.metric != *board::RECOVERY_ACTION.def());
                samples.extend(library.clone().filter(|_| gpu == GpuId(0)));
                samples
            });
            names.extend(all.iter().map(|what| described(what).1));
        }
        assert_eq!(names, expected, "{to}");
        fleet.event(0, advice("0x0 (None)"), EventSource::Kmsg);
        let ended = fleet.run(120.0, &[]);
        assert_eq!(ended.len(), expected.len(), "{to}: {ended:?}");
    }
}

#[test]
fn throttling_counts_by_its_part_of_the_time() {
    for (reason, part, expected) in [
        (ThrottleReason::HardwareThermal, 0.05, None),
        (ThrottleReason::HardwareThermal, 0.3, Some("thermal_slowdown")),
        (ThrottleReason::PowerBrake, 0.05, Some("power_brake")),
        (ThrottleReason::PowerCap, 1.0, None),
    ] {
        let mut fleet = Fleet::new();
        let mut started = Vec::new();
        for tick in 0..120 {
            let time = f64::from(tick) * TICK * part;
            let change = [device::THROTTLE_TIME.sample(GpuId(0), reason, 100.0 + time)];
            started.extend(fleet.tick(&change));
        }
        let started: Vec<_> = started.iter().map(|what| described(what).1).collect();
        assert_eq!(started, expected.into_iter().collect::<Vec<_>>(), "{reason:?} {part}");
    }
}

#[test]
fn a_temperature_that_rises_at_the_same_power_is_a_fault_of_the_cooling() {
    let mut fleet = Fleet::new();
    // Well into a busy half hour of its own: steady power.
    let steady = |time: f64, celsius: f64| {
        vec![
            device::ENERGY.sample(GpuId(0), (), 600.0 * time),
            device::TEMPERATURE.sample(GpuId(0), Sensor::Gpu, celsius),
        ]
    };
    let mut reported = Vec::new();
    for tick in 0..300 {
        let time = f64::from(tick) * TICK;
        // The pump stops after 25 minutes.
        let celsius = 55.0 + ((time - 1500.0).max(0.0) / 20.0).min(25.0);
        let change = steady(fleet.clock, celsius);
        reported.extend(fleet.tick(&change).iter().map(described));
    }
    let ramp = (EventKind::HealthStarted, "thermal_ramp");
    assert_eq!(reported, [ramp, (EventKind::HealthEnded, "thermal_ramp")]);
}

#[test]
fn a_device_far_behind_its_peers_at_the_same_work_is_named_and_no_other() {
    let mut fleet = Fleet::new();
    fleet.clock = 36_000.0;
    let slow = [device::CLOCK_SPEED.sample(GpuId(0), Clock::Sm, 1.1e9)];
    assert_eq!(fleet.run(1500.0, &slow), [(EventKind::HealthStarted, "peers_behind")]);
    assert_eq!(fleet.report().devices[0].conditions[0].reason, "63 % of its peers' clock");
    // Another owner's work on it is not the same work.
    let mut fleet = Fleet::new();
    fleet.clock = 36_000.0;
    let other = GpuOwner { gpu: GpuId(0), owner: OwnerId::UNATTRIBUTED };
    let alone = [slow[0].clone(), share::OWNER_PROCESSES.sample(other, Presence::Listed, 1)];
    assert_eq!(fleet.run(1500.0, &alone), []);
}

fn xid(code: u32, severity: Severity) -> Observation {
    let place = Place::Gpu(GpuId(0));
    let what = Observation::new(EventKind::Xid, place, severity, "NVRM: Xid");
    Observation { code: Some(code), ..what }
}

#[test]
fn faults_that_the_driver_reports_last_until_the_device_is_reset_or_a_day() {
    for (code, name) in [
        (48, "memory_fault"),
        (79, "bus_fault"),
        (74, "link_fault"),
        (54, "power_supply"),
        (119, "driver_firmware"),
        (62, "driver_fault"),
        (999, "driver_fault"),
    ] {
        let mut fleet = Fleet::new();
        fleet.run(30.0, &[]);
        fleet.event(0, xid(code, Severity::Critical), EventSource::Kmsg);
        fleet.event(0, xid(code, Severity::Critical), EventSource::Nvml);
        assert_eq!(fleet.run(600.0, &[]), [(EventKind::HealthStarted, name)], "{code}");
        let reset = Observation::new(EventKind::Reset, Place::Host, Severity::Warning, "");
        fleet.event(0, reset, EventSource::Kmsg);
        assert_eq!(fleet.run(60.0, &[]), [(EventKind::HealthEnded, name)], "{code}");
        fleet.tick = 120.0;
        fleet.event(0, xid(code, Severity::Critical), EventSource::Kmsg);
        assert_eq!(fleet.run(23.0 * 3600.0, &[]), [(EventKind::HealthStarted, name)]);
        assert_eq!(fleet.run(2.0 * 3600.0, &[]), [(EventKind::HealthEnded, name)]);
    }
}

/// A tenant makes its own XIDs, and its own text; neither is a condition.
#[test]
fn faults_of_a_programs_own_work_are_no_condition() {
    let mut fleet = Fleet::new();
    fleet.run(30.0, &[]);
    for code in [13, 31, 43, 45, 94] {
        fleet.event(0, xid(code, Severity::Warning), EventSource::Kmsg);
    }
    let of = |kind, severity| Observation::new(kind, Place::Host, severity, "Xid 79");
    fleet.event(0, of(EventKind::OomKill, Severity::Critical), EventSource::Kmsg);
    fleet.event(0, of(EventKind::RankHung, Severity::Critical), EventSource::Probes);
    fleet.event(0, xid(79, Severity::Critical), EventSource::Health);
    assert_eq!(fleet.run(600.0, &[]), []);
}

#[test]
fn a_device_that_does_not_answer_is_unknown_or_worse_and_what_is_not_read_has_no_series() {
    use gpuwho_model::catalog::Dims as _;
    let rows = (Condition::MemoryRowsFailed, metric::ConditionSeverity::Critical).indexes();
    let mut fleet = Fleet::new();
    fleet.tick(&[]);
    assert_eq!(fleet.value(metric::CONDITION.def(), rows), Some(0));
    let only = |of: DeviceState| {
        move |gpu: GpuId| {
            let one =
                |state: &DeviceState| device::STATE.sample(gpu, *state, i64::from(*state == of));
            DeviceState::ALL.iter().map(one).collect::<Vec<_>>()
        }
    };
    assert_eq!(fleet.tick_of(only(DeviceState::Released)), []);
    assert_eq!(fleet.value(metric::CONDITION.def(), rows), None);
    assert_eq!(fleet.value(metric::SCORE.def(), [u8::MAX; 2]), None);
    assert_eq!(fleet.report().verdict(), report::Verdict::Unknown);
    assert_eq!(fleet.tick_of(only(DeviceState::Lost)).len(), usize::from(DEVICES));
    assert_eq!(fleet.value(metric::SCORE.def(), [u8::MAX; 2]), Some(0));
    assert_eq!(fleet.report().verdict(), report::Verdict::Critical);
    // One that was replaced is no device of this host.
    fleet.tick_of(only(DeviceState::Replaced));
    assert_eq!(fleet.report().devices, []);
}

#[test]
fn an_old_verdict_is_none() {
    let mut fleet = Fleet::new();
    fleet.tick(&[]);
    assert_eq!(fleet.report().verdict(), report::Verdict::Ok);
    fleet.clock += 100.0;
    assert_eq!(fleet.report().verdict(), report::Verdict::Unknown);
}

/// An agent with its state in a folder.
fn stored(folder: &Path, boot: &str, clock: f64) -> Fleet {
    let paths = Paths::under(folder);
    let random = paths.proc.join("sys/kernel/random");
    std::fs::create_dir_all(&random).unwrap();
    std::fs::write(random.join("boot_id"), boot).unwrap();
    let now = (clock, UNIX_EPOCH + Duration::from_secs_f64(1e9 + clock));
    let monitor =
        HealthMonitor::new(HealthSettings::default(), Duration::from_secs(10), vec!["nvidia"]);
    let mut fleet = Fleet::with(monitor.with_past(&paths, now));
    fleet.clock = clock;
    fleet
}

#[test]
fn a_restarted_agent_reports_no_condition_again_and_goes_on_counting() {
    let folder = tempfile::tempdir().unwrap();
    let corrected =
        |count| wear::ECC_ERRORS.sample(GpuId(0), (EccError::Corrected, EccCount::Volatile), count);
    let failed = wear::REMAP_FAILED.sample(GpuId(0), (), 1);
    let mut fleet = stored(folder.path(), "first", 1000.0);
    let started = fleet.run(60.0, &[failed.clone(), corrected(100)]);
    assert_eq!(started, [(EventKind::HealthStarted, "memory_rows_failed")]);
    fleet.event(0, xid(119, Severity::Critical), EventSource::Kmsg);
    let started = fleet.run(60.0, &[failed.clone(), corrected(4000)]);
    assert_eq!(started, [(EventKind::HealthStarted, "driver_firmware")]);
    let since = fleet.report().devices[0].conditions[0].since.clone();
    fleet.store(folder.path());

    // The trend goes on over the restart: 3,900 before it and 3,000 after it.
    let mut fleet = stored(folder.path(), "first", fleet.clock + 300.0);
    let started = fleet.run(60.0, &[failed.clone(), corrected(7000)]);
    assert_eq!(started, [(EventKind::HealthStarted, "memory_corrected")]);
    assert_eq!(fleet.report().devices[0].conditions[0].since, since);
    fleet.store(folder.path());

    // The host has started again: what an event said is over, what the board says is not.
    let mut fleet = stored(folder.path(), "second", fleet.clock + 300.0);
    assert_eq!(fleet.run(60.0, &[failed, corrected(7000)]), []);
    let names: Vec<_> =
        fleet.report().devices[0].conditions.iter().map(|one| one.condition.clone()).collect();
    assert_eq!(names, ["memory_rows_failed", "memory_corrected"]);
}

#[test]
fn a_state_file_that_is_none_is_left_alone() {
    for text in [
        "",
        "{",
        "{\"version\":9,\"boot_id\":\"\",\"saved\":{\"secs_since_epoch\":0,\"nanos_since_epoch\":0},\"devices\":{}}",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::under(folder.path());
        std::fs::create_dir_all(&paths.state).unwrap();
        std::fs::write(paths.state.join(store::FILE), text).unwrap();
        let mut fleet = stored(folder.path(), "first", 1000.0);
        assert_eq!(fleet.run(60.0, &[]), [], "{text}");
    }
}

#[test]
fn readings_that_no_device_has_make_no_noise() {
    let mut fleet = Fleet::new();
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let change = [
            device::TEMPERATURE.sample(GpuId(0), Sensor::Gpu, value),
            device::TEMPERATURE_MARGIN.sample(GpuId(0), (), value),
            device::ENERGY.sample(GpuId(0), (), value),
            device::THROTTLE_TIME.sample(GpuId(0), ThrottleReason::HardwareThermal, value),
        ];
        assert_eq!(fleet.run(1200.0, &change), [], "{value}");
    }
    assert_eq!(fleet.report().verdict(), report::Verdict::Ok);
}

#[test]
fn a_fault_before_the_first_reading_counts() {
    let mut fleet = Fleet::new();
    for _ in 0..1000 {
        fleet.event(0, xid(79, Severity::Critical), EventSource::Kmsg);
    }
    assert_eq!(fleet.monitor.early.len(), MAX_EARLY);
    assert_eq!(fleet.run(30.0, &[]), [(EventKind::HealthStarted, "bus_fault")]);
}

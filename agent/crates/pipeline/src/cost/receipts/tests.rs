use super::view::GpuHours;
use super::*;
use crate::accounting::fixture::gpu;
use crate::accounting::{Amount, Increment};
use crate::cost::Rates;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::cost::TimeUse;
use gpuwho_model::catalog::{device, engine};
use gpuwho_model::ids::SlurmJobId;
use gpuwho_owners::attribute::Workload;
use gpuwho_owners::attribute::fake::FakeHost;
use gpuwho_owners::attribute::owner::Owner;
use gpuwho_owners::communicators::Communicators;
use gpuwho_owners::engines::{EngineFacts, Engines};
use gpuwho_owners::inventory::Inventory;
use std::path::Path;

const SECOND: u64 = 1_000_000_000;

/// A host, and the receipts of an agent on it.
struct Rig {
    ownership: Ownership,
    inventory: Inventory,
    engines: Engines,
    communicators: Communicators,
    _host: FakeHost,
}

impl Rig {
    fn new() -> Self {
        let host = FakeHost::new();
        let ownership = Ownership::with_clock(&host.paths, || 1);
        let inventory = Inventory::default();
        inventory.put(gpu(0));
        let (engines, communicators) = (Engines::default(), Communicators::default());
        Self { ownership, inventory, engines, communicators, _host: host }
    }

    fn job(&self, job: &str) -> OwnerId {
        let owner = Owner::Job(SlurmJobId::new(job));
        self.ownership.allocation_owner(owner, &Workload::default())
    }

    /// A second in which an owner used the device.
    fn second(&self, receipts: &Receipts, owner: OwnerId) {
        let gpu = self.inventory.all()[0].0;
        let rates = Arc::new(Rates::of_team(Some("nlp"), 3_600));
        let of = |what| Charge {
            increment: Increment { gpu, owner, elapsed_ns: SECOND, what },
            rates: Arc::clone(&rates),
            money: matches!(what, Amount::Time(..)).then_some(3_600),
            carbon: None,
        };
        let bytes = 1_u64 << 30;
        let byte_ns = u128::from(bytes) * u128::from(SECOND);
        let all = [
            Amount::Present,
            Amount::Time(TimeUse::Used, SECOND),
            Amount::Granted(SECOND),
            Amount::Memory { byte_ns, bytes },
            Amount::Energy { microjoules: 300_000_000, ns: SECOND },
        ];
        let charges = all.map(of);
        self.take(receipts, &charges, &mut Batch::new("nvidia", SystemTime::now()));
    }

    /// An interval of which these were added, that ended at a second of the wall clock.
    fn interval(&self, receipts: &Receipts, at: u64, elapsed_ns: u64, all: &[Amount]) {
        let (gpu, owner) = (self.inventory.all()[0].0, self.job("42"));
        let rates = Arc::new(Rates::of_team(None, 3_600));
        let of = |what: &Amount| Charge {
            increment: Increment { gpu, owner, elapsed_ns, what: *what },
            rates: Arc::clone(&rates),
            money: None,
            carbon: None,
        };
        let charges: Vec<_> = all.iter().map(of).collect();
        let mut batch = Batch::new("nvidia", SystemTime::UNIX_EPOCH + Duration::from_secs(at));
        batch.push(device::POWER_LIMIT.sample(gpu, device::Limit::Enforced, 500.0));
        batch.push(device::POWER_LIMIT.sample(gpu, device::Limit::Maximum, 700.0));
        self.take(receipts, &charges, &mut batch);
    }

    fn take(&self, receipts: &Receipts, charges: &[Charge], batch: &mut Batch) {
        let registries = Registries {
            inventory: &self.inventory,
            ownership: &self.ownership,
            communicators: &self.communicators,
            engines: &self.engines,
        };
        receipts.charge(charges, batch.time, &registries);
        receipts.take(!charges.is_empty(), batch, &registries);
    }
}

fn settings(folder: &Path) -> Settings {
    Settings {
        enabled: true,
        directory: Some(folder.join("receipts")),
        max_files: 2,
        state: Some(folder.to_owned()),
        period: Duration::ZERO,
    }
}

/// An agent whose owners end as soon as they are gone.
fn agent(folder: &Path) -> Receipts {
    let mut receipts = Receipts::open(&settings(folder), "node".into(), Duration::from_secs(1));
    receipts.end_after = Duration::ZERO;
    receipts
}

fn only(receipts: &Receipts, name: &str) -> Receipt {
    let mut report = receipts.report(name, None);
    assert_eq!(report.receipts.len(), 1, "{report:#?}");
    report.receipts.remove(0)
}

#[test]
fn a_user_learns_nothing_of_others_receipts() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let receipts = agent(folder.path());
    rig.second(&receipts, rig.job("42"));
    let answer = |name: &str, viewer| receipts.report(name, viewer).json().unwrap();
    assert_eq!(answer("42", Some(1000)), answer("43", Some(1000)));
    assert!(answer("43", Some(1000)).contains("\"others_hidden\": true"));
    assert_ne!(answer("42", None), answer("43", None), "root sees all");
}

#[test]
fn a_receipt_has_what_its_owner_had_and_is_made_once() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let receipts = agent(folder.path());
    let job = rig.job("42");
    (0..36).for_each(|_| rig.second(&receipts, job));
    let running = only(&receipts, "42");
    assert_eq!((&*running.state, &*running.kind), ("running", "slurm_job"));
    let hours = GpuHours { granted: Some(0.01), used: 0.01, idle: 0.0, unknown: 0.0 };
    assert_eq!(running.gpu_hours, hours);
    assert_eq!((running.energy_joules, running.power_peak_watts), (Some(10_800.0), Some(300.0)));
    assert_eq!((running.utilization_mean, running.memory_peak_bytes), (Some(1.0), Some(1 << 30)));
    assert_eq!(running.team.as_deref(), Some("nlp"));
    let finished = receipts.finish();
    assert_eq!(finished.len(), 1, "{finished:#?}");
    assert_eq!((&*finished[0].state, &*finished[0].host), ("ended", "node"));
    assert_eq!(receipts.finish(), []);
    assert_eq!(only(&receipts, "42").state, "ended", "it can still be asked for");
    let record = record(&finished[0]);
    let text = |key| record.attributes.get(key).map(ToString::to_string);
    assert_eq!((record.name, text(&attr::CURRENCY)), ("gpuwho.receipt", Some("USD".into())));
    assert_eq!(text(&attr::RECEIPT_USED).as_deref(), Some("0.01"));
    let body: Receipt = serde_json::from_str(&record.body).unwrap();
    assert_eq!(
        (body.receipt, body.until),
        (finished[0].receipt.clone(), finished[0].until.clone())
    );
}

/// Energy of so many watts between readings so far apart.
fn watts(watts: u64, ns: u64) -> Amount {
    Amount::Energy { microjoules: u128::from(watts) * u128::from(ns) / 1000, ns }
}

#[test]
fn a_peak_of_power_is_over_ten_seconds_between_readings() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let receipts = agent(folder.path());
    // On a busy host the batches come each second, and the readings early or late: two steps of the counter
    // fall into one interval. Over the batches' time that was up to 1,067 W of a board of 700 W.
    let late = [SECOND / 10, SECOND * 19 / 10];
    (0..12_u64).for_each(|at| {
        let all = [Amount::Present, watts(630, late[usize::try_from(at % 2).unwrap()])];
        rig.interval(&receipts, 1000 + at, SECOND, &all);
    });
    assert_eq!(only(&receipts, "42").power_peak_watts, Some(630.0));
}

#[test]
fn a_power_that_the_board_cannot_have_is_no_peak_and_counted() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let receipts = agent(folder.path());
    let seconds = |from: u64, power: u64| {
        let all = [Amount::Present, watts(power, SECOND)];
        (from..from + 10).for_each(|at| rig.interval(&receipts, at, SECOND, &all));
    };
    seconds(1000, 876);
    let receipt = only(&receipts, "42");
    assert_eq!((receipt.power_peak_watts, receipt.energy_joules), (None, Some(8760.0)));
    assert!(receipt.unknown[0].contains("above 125 % of the board's limit"), "{receipt:#?}");
    seconds(1010, 874);
    assert_eq!(only(&receipts, "42").power_peak_watts, Some(874.0), "a quarter more can be");
    assert_eq!(receipts.status().unwrap().dropped, [(DropReason::Implausible, 1)]);
}

#[test]
fn a_receipt_begins_with_the_interval_that_it_is_charged_for() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let receipts = agent(folder.path());
    let ten = 10 * SECOND;
    for at in (1010..=1060).step_by(10) {
        let all = [Amount::Present, Amount::Time(TimeUse::Used, ten), watts(105, ten)];
        rig.interval(&receipts, at, ten, &all);
    }
    let receipt = only(&receipts, "42");
    assert_eq!(
        (receipt.seconds, receipt.gpu_hours.used * 3600.0, receipt.energy_joules),
        (60.0, 60.0, Some(6300.0))
    );
    assert_eq!(
        (&*receipt.began, &*receipt.until),
        ("1970-01-01T00:16:40Z", "1970-01-01T00:17:40Z")
    );
}

#[test]
fn what_no_source_names_is_null_and_has_no_key() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let receipts = agent(folder.path());
    rig.interval(&receipts, 1001, SECOND, &[Amount::Present, Amount::Time(TimeUse::Used, SECOND)]);
    let receipt = only(&receipts, "42");
    assert_eq!(receipt.line(), "used=0.000 idle=0.000 busy=100% cost=0.00USD");
    let json = serde_json::to_value(&receipt).unwrap();
    assert!(json["gpu_hours"]["granted"].is_null());
    for key in ["energy_joules", "memory_mean_bytes", "memory_peak_bytes"] {
        assert!(json[key].is_null() && json["devices"][0][key].is_null(), "{key}");
    }
    assert!(["power_mean_watts", "power_peak_watts"].iter().all(|key| json[key].is_null()));
    let record = record(&receipt);
    assert!(record.attributes.get(&attr::RECEIPT_GRANTED).is_none());
    assert!(record.attributes.get(&attr::RECEIPT_ENERGY).is_none());
    // Then a counter is found.
    rig.interval(&receipts, 1002, SECOND, &[Amount::Present, watts(100, SECOND)]);
    let expected = ["the energy of 0.0003 GPU-hours was not counted"];
    assert_eq!(only(&receipts, "42").unknown, expected);
    // No reading shows the use either.
    let other = agent(tempfile::tempdir().unwrap().path());
    rig.interval(&other, 1002, SECOND, &[Amount::Time(TimeUse::Unknown, SECOND)]);
    assert_eq!(only(&other, "42").line(), "used=0.000 idle=0.000 cost=0.00USD");
}

#[test]
fn a_restart_in_the_middle_counts_nothing_twice() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let first = agent(folder.path());
    let job = rig.job("42");
    (0..5).for_each(|_| rig.second(&first, job));
    first.save(Instant::now(), false);
    // Killed: what came after the last write is lost, and nothing is saved.
    rig.second(&first, job);
    drop(first);
    let second = agent(folder.path());
    assert_eq!(second.finish(), [], "the job is waited for");
    (0..3).for_each(|_| rig.second(&second, job));
    let receipt = only(&second, "42");
    assert!((receipt.gpu_hours.used * 3600.0 - 8.0).abs() < 1e-6, "{receipt:#?}");
    assert_eq!(receipt.energy_joules, Some(2400.0), "{receipt:#?}");
    assert!(receipt.unknown[0].starts_with("the agent restarted 1 time; "), "{receipt:#?}");
    assert_eq!(second.finish().len(), 1);
    second.save(Instant::now(), false);
    drop(second);
    let third = agent(folder.path());
    assert_eq!(only(&third, "42").state, "ended", "a finished one is not opened again");
    assert_eq!(third.finish(), [], "nor sent twice");
}

#[test]
fn a_broken_state_file_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    for text in ["", "{", "{\"version\":9,\"open\":[],\"finished\":[]}", "[]"] {
        std::fs::write(folder.path().join("receipts.json"), text).unwrap();
        assert_eq!(agent(folder.path()).finish(), [], "{text}");
    }
}

#[test]
fn the_directory_keeps_the_latest_files() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let receipts = agent(folder.path());
    let directory = folder.path().join("receipts");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("theirs.json"), "not ours").unwrap();
    for job in ["1", "2", "3/../../x"] {
        rig.second(&receipts, rig.job(job));
        receipts.finish();
        receipts.save(Instant::now(), false);
    }
    let names = std::fs::read_dir(&directory).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let ends: Vec<_> = names.iter().map(|name| name.get(20..).unwrap_or(name)).collect();
    assert_eq!(
        ends,
        ["-slurm_job_2.json", "-slurm_job_3_.._.._x.json", "theirs.json"],
        "{names:?}"
    );
}

#[test]
fn many_receipts_of_one_user_take_none_of_anothers() {
    let of = |user: u32, second: u32| Receipt {
        receipt: format!("slurm_job/{second}"),
        users: vec![user],
        until: format!("2026-11-23T00:00:{second:02}Z"),
        ..Receipt::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let (mut files, _) = Files::open(&settings(folder.path()));
    let mut state = State::default();
    let count = u32::try_from(MAX_FINISHED).unwrap() + 9;
    for number in 0..count {
        let receipt = of(u32::from(number > 0), number);
        files.queue(&receipt);
        if number > 7 {
            files.write_receipts();
        }
        state.finished.push_back(receipt);
        state.bound_finished();
    }
    let names = std::fs::read_dir(folder.path().join("receipts")).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let ends: Vec<_> = names.iter().map(|name| name.rsplit('_').next().unwrap()).collect();
    let last = format!("{}.json", count - 1);
    assert_eq!(ends, ["0.json", &last], "{names:?}");
    let users = |user| state.finished.iter().filter(|receipt| receipt.users == [user]).count();
    assert_eq!((users(0), users(1)), (1, MAX_FINISHED - 1));
    assert_eq!(state.finished.back().map(|last| &*last.receipt), Some("slurm_job/264"));
}

/// Files of at most a thousand receipts, and a receipt of this name.
fn thousand(folder: &Path) -> (Files, impl Fn(&str) -> Receipt) {
    let of = |name: &str| Receipt {
        receipt: format!("slurm_job/{name}"),
        until: "2026-11-23T00:00:01Z".into(),
        ..Receipt::default()
    };
    (Files::open(&Settings { max_files: 1000, ..settings(folder) }).0, of)
}

#[test]
fn receipts_whose_plain_names_are_the_same_have_a_file_each() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, of) = thousand(folder.path());
    for name in ["a b", "a/b", "a_b"] {
        files.queue(&of(name));
        files.write_receipts();
    }
    let names = std::fs::read_dir(folder.path().join("receipts")).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let ends = ["", "-2", "-3"].map(|end| format!("2026-11-23T00:00:01Z-slurm_job_a_b{end}.json"));
    let mut expected = ends.to_vec();
    expected.sort_unstable();
    assert_eq!(names, expected);
}

#[test]
fn receipts_that_cannot_be_written_wait_and_those_beyond_the_limit_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, of) = thousand(folder.path());
    let place = folder.path().join("receipts");
    std::fs::write(&place, "in the way").unwrap();
    for number in 0..300 {
        files.queue(&of(&number.to_string()));
        files.write_receipts();
    }
    let trouble = files.trouble().unwrap();
    assert!(trouble.starts_with("cannot write receipts in "), "{trouble}");
    assert_eq!(files.lost(), 300 - 256);
    std::fs::remove_file(&place).unwrap();
    files.write_receipts();
    assert_eq!((files.trouble(), std::fs::read_dir(&place).unwrap().count()), (None, 256));
}

#[test]
fn finished_receipts_that_nobody_takes_are_counted() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let receipts = agent(folder.path());
    assert_eq!(receipts.status(), None);
    let job = rig.job("42");
    rig.second(&receipts, job);
    let mut state = receipts.state.lock();
    let (key, open) =
        state.open.first_key_value().map(|(key, open)| (Arc::clone(key), open.clone())).unwrap();
    for _ in 0..MAX_UNSENT + 5 {
        state.open.insert(Arc::clone(&key), open.clone());
        state.end(&key, ReceiptEnd::Ended);
    }
    drop(state);
    let report = receipts.status().unwrap();
    assert_eq!(
        (report.state, report.dropped),
        (SourceState::Ready, vec![(DropReason::QueueFull, 10)])
    );
}

#[test]
fn more_open_receipts_than_the_limit_end_the_least_active_ones() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let receipts = agent(folder.path());
    let gpu = rig.inventory.all()[0].0;
    let rates = Arc::new(Rates::of_team(None, 0));
    let charge = |job: usize| Charge {
        increment: Increment {
            gpu,
            owner: rig.job(&job.to_string()),
            elapsed_ns: 1,
            what: Amount::Present,
        },
        rates: Arc::clone(&rates),
        money: None,
        carbon: None,
    };
    let charges: Vec<_> = (0..MAX_OPEN + 3).map(charge).collect();
    rig.take(&receipts, &charges, &mut Batch::new("nvidia", SystemTime::now()));
    let state = receipts.state.lock();
    assert_eq!((state.open.len(), state.evicted), (MAX_OPEN, 3));
    assert!(state.unsent[0].unknown[0].contains("too many receipts"), "{:#?}", state.unsent[0]);
}

#[test]
fn tokens_of_an_engine_are_on_the_receipt_of_its_owner() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let receipts = agent(folder.path());
    let job = rig.job("42");
    let engine = rig.engines.add(EngineFacts { owner: Some(job), ..EngineFacts::default() });
    rig.second(&receipts, job);
    for generated in [100, 350, 20, 30] {
        let mut batch = Batch::new("engines", SystemTime::now());
        batch.push(engine::GENERATED_TOKENS.sample(engine, (), generated));
        rig.take(&receipts, &[], &mut batch);
    }
    // 250 and, after the engine started again, 10; what it had before is not the job's.
    let generated = only(&receipts, "42").tokens.unwrap().generated;
    assert!((generated - 260.0).abs() < 1e-9, "{generated}");
}

#[test]
fn users_see_their_own_receipts() {
    let of = |users: &[u32]| Receipt {
        receipt: "pod/uid-1".into(),
        kind: "pod".into(),
        users: users.to_vec(),
        owner: BTreeMap::from([
            ("k8s.pod.name".to_owned(), "trainer".to_owned()),
            ("k8s.namespace.name".to_owned(), "ml".to_owned()),
        ]),
        ..Receipt::default()
    };
    assert!(of(&[1000]).is_visible_to(1000));
    assert!(!of(&[1000]).is_visible_to(1001) && !of(&[0, 1000]).is_visible_to(1000));
    assert!(!of(&[]).is_visible_to(1000), "nobody knows whose it is");
    for (name, expected) in [
        ("trainer", true),
        ("ml/trainer", true),
        ("uid-1", true),
        ("pod/uid-1", true),
        ("other/trainer", false),
        ("train", false),
        ("", false),
    ] {
        assert_eq!(of(&[]).is_of(name), expected, "{name}");
    }
}

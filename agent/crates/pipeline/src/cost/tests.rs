use super::*;
use crate::accounting::fixture::gpu;
use gpuwho_model::catalog::cost::TimeUse;
use gpuwho_model::ids::SlurmJobId;
use gpuwho_model::sample::Value;
use gpuwho_owners::attribute::Workload;
use gpuwho_owners::attribute::fake::FakeHost;
use gpuwho_owners::attribute::owner::Owner;
use gpuwho_owners::attribute::slurm::SlurmTask;
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use gpuwho_model::config::Tables;

const HOUR: u64 = 3_600_000_000_000;

/// The stage of a configuration.
pub(super) fn priced(text: &str) -> Costs {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let tables = Tables::load(Some(file.path()), &[], &[SECTION], &[]).unwrap();
    let settings = Arc::new(Settings::resolve(&tables).unwrap());
    let carbon = Arc::new(Carbon::new(settings.carbon()));
    Costs::new(settings, carbon, Some("p5.48xlarge".into()))
}

struct Rig {
    costs: Costs,
    ownership: Ownership,
    inventory: Inventory,
    has_prolog: bool,
    _host: FakeHost,
}

impl Rig {
    fn new(text: &str) -> Self {
        let host = FakeHost::new();
        let ownership = Ownership::with_clock(&host.paths, || 1);
        let inventory = Inventory::default();
        inventory.put(gpu(0));
        Self { costs: priced(text), ownership, inventory, has_prolog: true, _host: host }
    }

    fn job(&self, job: &str, partition: &str) -> OwnerId {
        let owner = Owner::Job(SlurmJobId::new(job));
        let workload = Workload {
            slurm: Some(SlurmTask::with_partition(job, partition, self.has_prolog)),
            ..Workload::default()
        };
        self.ownership.allocation_owner(owner, &workload)
    }

    /// Values by metric, use and labels, after these increments.
    fn charge(&mut self, amounts: &[(OwnerId, Amount)]) -> BTreeMap<String, f64> {
        let gpu = self.inventory.all()[0].0;
        let increments: Vec<_> = amounts
            .iter()
            .map(|(owner, what)| Increment { gpu, owner: *owner, elapsed_ns: HOUR, what: *what })
            .collect();
        let samples = [("nvidia", &increments[..]), ("amd", &[]), (Agent::SOURCE, &[])].map(
            |(source, of)| {
                let mut batch = Batch::new(source, UNIX_EPOCH);
                self.costs.charge(of, &mut batch, (&self.ownership, &self.inventory), |_| {});
                batch.samples
            },
        );
        let named = samples.iter().flatten().map(|(_, sample)| {
            let mut words = vec![sample.metric.name.to_owned()];
            let dims = sample.metric.dims.iter().zip(sample.dims);
            words.extend(dims.map(|(dim, place)| dim.values[usize::from(place)].to_owned()));
            let labels = sample.labels.iter().flat_map(|labels| labels.set().iter());
            words.extend(labels.map(|(_, value)| value.to_string()));
            let value = match sample.value {
                Value::Double(value) => value,
                Value::Int(value) => value as f64,
                Value::Histogram(_) => f64::NAN,
            };
            (words.join(" "), value)
        });
        let mut values = BTreeMap::new();
        for (name, value) in named {
            let is_again = values.insert(name.clone(), value).is_some();
            assert!(!(is_again && name.starts_with("gpuwho.")), "{name} twice");
        }
        values
    }
}

fn has(values: &BTreeMap<String, f64>, name: &str, expected: f64) {
    let value = values.get(name).copied();
    let is_it = value.is_some_and(|value| (value - expected).abs() < 1e-9);
    assert!(is_it, "{name} is {value:?}, not {expected}: {values:#?}");
}

#[test]
fn an_hour_costs_its_price_by_use_and_partition() {
    let mut rig = Rig::new(
        "[cost]\nprices = [{ partition = \"cheap\", per_hour = 1, currency = \"EUR\" }, \
         { model = \"*h100*\", per_hour = 2.5 }]",
    );
    let (cheap, dear) = (rig.job("1", "cheap"), rig.job("2", "dear"));
    let values = rig.charge(&[
        (dear, Amount::Time(TimeUse::Used, HOUR)),
        (dear, Amount::Granted(2 * HOUR)),
        (cheap, Amount::Time(TimeUse::Idle, HOUR)),
        (OwnerId::UNATTRIBUTED, Amount::Time(TimeUse::Idle, HOUR)),
    ]);
    has(&values, "gpu.owner.cost used USD configured", 2.5);
    has(&values, "gpu.owner.cost idle EUR configured", 1.0);
    has(&values, "gpu.allocation.cost USD configured", 5.0);
    has(&values, "gpu.cost USD configured", 5.0);
    has(&values, "gpu.cost EUR configured", 1.0);
    has(&values, "gpu.price USD configured", 2.5);
    has(&values, "gpuwho.cost.unpriced", 0.0);
}

#[test]
fn what_only_a_jobs_environment_says_decides_neither_price_nor_team() {
    let text = "[cost]\nprices = [{ partition = \"cheap\", per_hour = 1 }, { per_hour = 2 }]\n\
                teams = [{ team = \"theirs\", partition = \"cheap\" }]";
    let mut rig = Rig { has_prolog: false, ..Rig::new(text) };
    let job = rig.job("1", "cheap");
    let values = rig.charge(&[(job, Amount::Time(TimeUse::Used, HOUR))]);
    has(&values, "gpu.owner.cost used USD configured", 2.0);
}

#[test]
fn without_a_price_there_is_time_and_no_money() {
    let mut rig = Rig::new("");
    let job = rig.job("1", "any");
    let values = rig.charge(&[(job, Amount::Time(TimeUse::Used, HOUR))]);
    assert_eq!(values, BTreeMap::from([("gpu.owner.time used".to_owned(), 3600.0)]));
}

#[test]
fn a_device_that_no_row_fits_is_unpriced() {
    let text = "[cost]\nprices = [{ model = \"A100\", per_hour = 9 }]\n";
    let unattributed = (OwnerId::UNATTRIBUTED, Amount::Time(TimeUse::Idle, HOUR));
    let values = Rig::new(text).charge(&[unattributed]);
    has(&values, "gpuwho.cost.unpriced", 1.0);
    assert!(!values.keys().any(|name| name.starts_with("gpu.cost")), "{values:#?}");
}

#[test]
fn energy_has_a_cost_and_carbon_with_the_data_centres_overhead() {
    let mut rig = Rig::new(
        "[cost]\nenergy_price = 0.2\npue = 1.5\ncarbon_intensity = 400\ncurrency = \"EUR\"\n\
         teams = [{ team = \"vision\", partition = \"cv*\" }]\n\
         budgets = [{ team = \"vision\", amount = 100 }]",
    );
    let job = rig.job("1", "cv-a");
    // A kilowatt-hour in microjoules.
    let values = rig.charge(&[(job, Amount::Energy { microjoules: 3_600_000_000_000, ns: 1 })]);
    has(&values, "gpu.owner.energy.cost EUR vision", 0.3);
    has(&values, "gpu.owner.carbon vision", 600.0);
    has(&values, "gpu.energy.carbon_intensity configured", 400.0);
    has(&values, "gpuwho.cost.budget vision EUR", 100.0);
}

#[test]
fn owners_beyond_the_limit_are_other_and_nothing_is_lost() {
    let mut rig = Rig::new("[cost]\nprices = [{ per_hour = 1 }]");
    let owners: Vec<_> = (0..200).map(|job| rig.job(&job.to_string(), "p")).collect();
    let all: Vec<_> =
        owners.iter().map(|owner| (*owner, Amount::Time(TimeUse::Used, HOUR))).collect();
    let mut batch = Batch::new("nvidia", UNIX_EPOCH);
    let gpu = rig.inventory.all()[0].0;
    let increments: Vec<_> = all
        .iter()
        .map(|(owner, what)| Increment { gpu, owner: *owner, elapsed_ns: HOUR, what: *what })
        .collect();
    for _ in 0..3 {
        batch.samples.clear();
        rig.costs.charge(&increments, &mut batch, (&rig.ownership, &rig.inventory), |_| {});
    }
    let of = |name: &str| {
        let of = batch.samples.iter().filter(|(_, sample)| sample.metric.name == name);
        of.map(|(_, sample)| if let Value::Double(value) = sample.value { value } else { 0.0 })
            .collect::<Vec<_>>()
    };
    let owners = of("gpu.owner.cost");
    assert!(owners.len() <= 66, "{}", owners.len());
    let (sum, cost) = (owners.iter().sum::<f64>(), of("gpu.cost")[0]);
    assert!((sum - 600.0).abs() < 1e-6 && (cost - 600.0).abs() < 1e-6, "{sum} {cost}");
}

//! The filter of `top`: `temp>85 & user==alice`, `ns:serving | job:123`, or a part of any name.

use crate::who::table::row::gib;
use crate::who::{Device, HostReport, Process};
use gpuwho_model::text::sort_by_likeness;

/// Longest filter in bytes.
pub(super) const MAX_LEN: usize = 256;

/// Terms joined by `&`, such groups by `|`. Without a term everything matches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Filter {
    any: Vec<Vec<Term>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Term {
    field: Field,
    is: Op,
    /// In lower case.
    text: String,
    number: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// Any name of a device, an owner or a process.
    Name,
    Gpu,
    Vendor,
    Model,
    State,
    Util,
    Memory,
    Power,
    Temperature,
    User,
    Namespace,
    Pod,
    Job,
    Unit,
    Command,
    Pid,
}

/// The words of the fields; util in percent, mem in GiB.
const FIELDS: &[(&str, Field)] = &[
    ("gpu", Field::Gpu),
    ("vendor", Field::Vendor),
    ("model", Field::Model),
    ("state", Field::State),
    ("util", Field::Util),
    ("mem", Field::Memory),
    ("power", Field::Power),
    ("temp", Field::Temperature),
    ("user", Field::User),
    ("ns", Field::Namespace),
    ("pod", Field::Pod),
    ("job", Field::Job),
    ("unit", Field::Unit),
    ("cmd", Field::Command),
    ("pid", Field::Pid),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Contains,
    Equal,
    NotEqual,
    Above,
    AtLeast,
    Below,
    AtMost,
}

/// Longer ones first.
const OPS: &[(&str, Op)] = &[
    ("==", Op::Equal),
    ("!=", Op::NotEqual),
    (">=", Op::AtLeast),
    ("<=", Op::AtMost),
    (">", Op::Above),
    ("<", Op::Below),
    ("=", Op::Equal),
    (":", Op::Contains),
];

impl Filter {
    /// Parses a filter; what is wrong with it, in words.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let is_blank = |text: &str| text.trim().is_empty();
        if is_blank(text) {
            return Ok(Self::default());
        }
        let group = |group: &str| group.split('&').map(Term::parse).collect::<Result<Vec<_>, _>>();
        let any = text.split('|').map(group).collect::<Result<_, _>>()?;
        Ok(Self { any })
    }

    /// Whether everything matches.
    pub(super) fn is_empty(&self) -> bool {
        self.any.is_empty()
    }

    /// Whether a process on a device matches.
    pub(super) fn has(&self, report: &HostReport, device: &Device, process: &Process) -> bool {
        let is_met = |term: &Term| term.is_met(report, device, Some(process));
        self.is_empty() || self.any.iter().any(|terms| terms.iter().all(is_met))
    }

    /// Whether a device matches, by itself or for one of its processes.
    pub(super) fn has_device(&self, report: &HostReport, device: &Device) -> bool {
        let is_met = |term: &Term| term.is_met(report, device, None);
        self.is_empty()
            || self.any.iter().any(|terms| terms.iter().all(is_met))
            || device.processes.iter().any(|process| self.has(report, device, process))
    }
}

impl Term {
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("a term is missing beside & or |".to_owned());
        }
        let ops = OPS.iter().filter_map(|(word, op)| Some((text.find(word)?, *word, *op)));
        // The first operator; of two at one place the longer.
        let found = ops.min_by_key(|(at, word, _)| (*at, usize::MAX - word.len()));
        let Some((at, word, is)) = found else {
            let text = text.to_lowercase();
            return Ok(Self { field: Field::Name, is: Op::Contains, text, number: None });
        };
        let (name, rest) = text.split_at(at);
        let field = field(name.trim())?;
        let text = rest.get(word.len()..).unwrap_or_default().trim().to_lowercase();
        let number = text.parse().ok();
        let needs_number = !matches!(is, Op::Contains | Op::Equal | Op::NotEqual);
        if text.is_empty() || needs_number && number.is_none() {
            let kind = if needs_number { "number" } else { "value" };
            return Err(format!("{} {word} what? write a {kind}", name.trim()));
        }
        Ok(Self { field, is, text, number })
    }

    fn is_met(&self, report: &HostReport, device: &Device, process: Option<&Process>) -> bool {
        if self.is_about_a_number() {
            return self.number_of(device, process).is_some_and(|has| self.compares(has));
        }
        let texts = self.texts_of(report, device, process);
        let is = |text: &String| match self.is {
            Op::Equal => *text == self.text,
            _ => text.contains(&self.text),
        };
        match self.is {
            // Of a device alone nothing is known of processes: neither that one is nor that one is not.
            Op::NotEqual => !texts.is_empty() && texts.iter().all(|text| *text != self.text),
            Op::Above | Op::AtLeast | Op::Below | Op::AtMost => false,
            Op::Contains | Op::Equal => texts.iter().any(is),
        }
    }

    /// Whether a number is compared with a field that is one.
    fn is_about_a_number(&self) -> bool {
        let numbers = [Field::Util, Field::Memory, Field::Power, Field::Temperature, Field::Pid];
        self.number.is_some() && numbers.contains(&self.field)
    }

    /// The value of a field that is a number.
    fn number_of(&self, device: &Device, process: Option<&Process>) -> Option<f64> {
        match self.field {
            Field::Util => device.utilization.map(|part| part * 100.0),
            Field::Memory => device.memory_used_bytes.map(gib),
            Field::Power => device.power_watts,
            Field::Temperature => device.temperature_celsius,
            Field::Pid => process.map(|process| f64::from(process.owner.pid)),
            _ => None,
        }
    }

    fn compares(&self, has: f64) -> bool {
        let wanted = self.number.unwrap_or(f64::NAN);
        match self.is {
            Op::Contains | Op::Equal => (has - wanted).abs() < 0.5,
            Op::NotEqual => (has - wanted).abs() >= 0.5,
            Op::Above => has > wanted,
            Op::AtLeast => has >= wanted,
            Op::Below => has < wanted,
            Op::AtMost => has <= wanted,
        }
    }

    /// The texts of a field, in lower case.
    fn texts_of(
        &self,
        report: &HostReport,
        device: &Device,
        process: Option<&Process>,
    ) -> Vec<String> {
        let of_device = [report.name(device), device.vendor.clone(), device.model.clone()];
        let owner = process.map(|process| &process.owner);
        let of = |name: fn(&gpuwho_owners::attribute::view::OwnerView) -> Option<&String>| {
            owner.and_then(name).cloned()
        };
        let [name, vendor, model] = of_device.map(Some);
        let texts: Vec<Option<String>> = match self.field {
            Field::Name => vec![
                vendor,
                model,
                of(|owner| owner.owner.as_ref()),
                of(|owner| Some(&owner.user)),
                of(|owner| Some(&owner.comm)),
                of(|owner| owner.job_name.as_ref()),
            ],
            Field::Gpu => vec![name, Some(device.uuid.clone()), device.pci_address.clone()],
            Field::Vendor => vec![vendor],
            Field::Model => vec![model],
            Field::State => vec![Some(device.state.clone())],
            Field::User => vec![of(|owner| Some(&owner.user))],
            Field::Namespace => vec![of(|owner| owner.namespace.as_ref())],
            Field::Pod => vec![of(|owner| owner.pod.as_ref())],
            Field::Job => vec![of(|owner| owner.slurm_job.as_ref())],
            Field::Unit => vec![of(|owner| owner.unit.as_ref())],
            Field::Command => vec![of(|owner| Some(&owner.comm))],
            Field::Util | Field::Memory | Field::Power | Field::Temperature | Field::Pid => {
                Vec::new()
            }
        };
        texts.into_iter().flatten().map(|text| text.to_lowercase()).collect()
    }
}

fn field(name: &str) -> Result<Field, String> {
    let name = name.to_lowercase();
    let known = FIELDS.iter().find(|(word, _)| *word == name);
    known.map(|(_, field)| *field).ok_or_else(|| {
        let mut words: Vec<&str> = FIELDS.iter().map(|(word, _)| *word).collect();
        sort_by_likeness(&name, &mut words);
        format!("no field `{name}`; there are {}", words.join(" "))
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    /// PIDs that a filter leaves.
    fn left(filter: &str) -> Vec<u32> {
        let (filter, report) = (Filter::parse(filter).unwrap(), fixture::report());
        let on = |device| {
            let device: &Device = device;
            let of = device.processes.iter().filter(|process| filter.has(&report, device, process));
            of.map(|process| process.owner.pid).collect::<Vec<_>>()
        };
        report.devices.iter().flat_map(on).collect()
    }

    #[test]
    fn terms_are_what_people_type() {
        for (filter, pids) in [
            ("", &[10, 11, 12][..]),
            ("temp>60 & user==alice", &[11]),
            ("temp > 60", &[10, 11]),
            ("ns:serv", &[10]),
            ("job:777 | ns=serving", &[10, 11]),
            ("llama", &[10]),
            ("TRAIN", &[11]),
            ("user!=alice", &[10, 12]),
            ("gpu==1", &[12]),
            ("util<=3 & mem<1", &[12]),
            ("pid=11", &[11]),
            ("power>9000", &[]),
        ] {
            assert_eq!(left(filter), pids, "{filter}");
        }
    }

    #[test]
    fn a_device_matches_by_itself_or_for_a_process() {
        let report = fixture::report();
        let devices = |filter: &str| {
            let filter = Filter::parse(filter).unwrap();
            let of = report.devices.iter().filter(|device| filter.has_device(&report, device));
            of.map(|device| device.index).collect::<Vec<_>>()
        };
        assert_eq!(devices("temp<50"), [1]);
        assert_eq!(devices("user==alice"), [0]);
        assert_eq!(devices("user!=alice"), [0, 1], "both have another's process");
        assert_eq!(devices("state:lost"), [2]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (filter, part) in [
            ("usr==alice", "no field `usr`; there are user"),
            ("temp>", "temp > what? write a number"),
            ("temp>hot", "write a number"),
            ("ns:", "write a value"),
            ("a & ", "a term is missing"),
        ] {
            let error = Filter::parse(filter).unwrap_err();
            assert!(error.contains(part), "{filter}: {error}");
        }
    }
}

//! What of the report a person wants to see: `--gpu`, `--user`, `--pod`, `--namespace`, `--job`,
//! `--sort`.

use super::{Device, HostReport, Process, Totals};
use clap::{Args, ValueEnum};
use gpuwho_model::ids::PciAddress;
use gpuwho_model::text::{device_name, plural, printable, sort_by_likeness};
use gpuwho_owners::attribute::view::OwnerView;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Known names in an answer that nothing matches.
const MAX_NEAR: usize = 8;

/// Which devices and whose processes, and in which order.
#[derive(Clone, Debug, Default, Args)]
pub struct Selection {
    /// Only these devices: index, VENDOR:INDEX, UUID or PCI address; may be repeated.
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    gpu: Vec<String>,
    /// Only this user: name or number.
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Only pods whose name starts with this.
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,
    /// Only this Kubernetes namespace.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Only this Slurm job.
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Order of the processes on a device.
    #[arg(long, value_name = "KEY", default_value = "memory")]
    sort: SortKey,
}

/// An order of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum SortKey {
    /// The largest memory first.
    #[default]
    Memory,
    /// The busiest first.
    Util,
    /// By PID.
    Pid,
    /// By owner.
    Owner,
    /// By user.
    User,
}

/// Why a device that was asked for is none.
#[derive(Debug, thiserror::Error)]
pub enum NoSuchDevice {
    /// It is not there.
    #[error("no device `{asked}`; there are: {present}")]
    Absent {
        /// What was asked for.
        asked: String,
        /// The devices.
        present: String,
    },
    /// Devices of several vendors have this index.
    #[error("device {asked} of which vendor? say {present}")]
    Ambiguous {
        /// What was asked for.
        asked: String,
        /// The devices.
        present: String,
    },
}

impl Selection {
    /// The part of a report that was asked for, with totals of its own.
    pub fn apply(&self, mut report: HostReport) -> Result<HostReport, NoSuchDevice> {
        report.devices.iter_mut().for_each(|device| self.sort.sort(&mut device.processes));
        // Without any device the table says that, which is the answer.
        for asked in self.gpu.iter().filter(|_| !report.devices.is_empty()) {
            has_one(&report, asked)?;
        }
        let is_about_owners = self.is_about_owners();
        if !self.gpu.is_empty() {
            let is_asked = |device: &Device| self.gpu.iter().any(|gpu| is_named(device, gpu));
            report.devices.retain(is_asked);
            report.holders.clear();
            report.engines.clear();
        }
        if is_about_owners {
            report.holders.retain(|holder| self.is_owner(&holder.owner));
            report.ended.retain(|holder| self.is_owner(&holder.owner));
            report.engines.retain(|engine| self.is_owner(&engine.owner));
            report.devices.iter_mut().for_each(|device| self.keep_owners(device));
            if self.gpu.is_empty() {
                report.devices.retain(|device| !device.processes.is_empty());
            }
        }
        if is_about_owners || !self.gpu.is_empty() {
            let others = report.devices.iter().filter_map(|device| device.others.as_ref());
            // With an owner asked for, others are on the devices and not counted.
            let hidden = others.map(|others| others.processes).sum::<usize>();
            report.totals = Totals::of(&report.devices);
            report.totals.processes += if is_about_owners { 0 } else { hidden };
        }
        Ok(report)
    }

    /// Leaves the processes that were asked for; what all others have on the device is one line.
    fn keep_owners(&self, device: &mut Device) {
        let is_asked = |process: &Process| self.is_owner(&process.owner);
        let (own, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut device.processes).into_iter().partition(is_asked);
        let mut others = device.others.take().unwrap_or_default();
        for process in &rest {
            others.add(process);
        }
        device.others = Some(others).filter(|others| others.processes > 0);
        if own.is_empty() {
            device.memory_exclusive_bytes = None;
        }
        device.processes = own;
    }

    /// That nothing in a report is of the owner that was asked for, and which there are.
    pub fn no_match(&self, all: &HostReport, chosen: &HostReport) -> Option<String> {
        let of_devices = chosen.devices.iter().map(|device| device.processes.len());
        let found = of_devices.sum::<usize>() + chosen.holders.len() + chosen.engines.len();
        if !self.is_about_owners() || found > 0 || all.devices.is_empty() {
            return None;
        }
        let owners: Vec<&OwnerView> = {
            let on = all.devices.iter().flat_map(|device| &device.processes);
            let on = on.map(|process| &process.owner);
            on.chain(all.holders.iter().map(|holder| &holder.owner)).collect()
        };
        let of = |kind, asked: &Option<String>, name: fn(&OwnerView) -> Option<&String>| {
            let asked = asked.as_ref()?;
            let names: BTreeSet<&str> =
                owners.iter().filter_map(|owner| name(owner)).map(String::as_str).collect();
            Some((format!("{kind} {asked}"), near(asked, names)))
        };
        let asked = [
            of("user", &self.user, |owner| Some(&owner.user)),
            of("pod", &self.pod, |owner| owner.pod.as_ref()),
            of("namespace", &self.namespace, |owner| owner.namespace.as_ref()),
            of("job", &self.job, |owner| owner.slurm_job.as_ref()),
        ];
        let (names, known): (Vec<_>, Vec<_>) = asked.into_iter().flatten().unzip();
        let devices = plural(all.devices.len(), "accelerator", "accelerators");
        let mut text = format!("no process of {} on {devices}", names.join(", "));
        for known in known.into_iter().filter(|known| !known.is_empty()) {
            // Writing to a String cannot fail.
            let _ = write!(text, "; there are: {known}");
        }
        if let hidden @ 1.. = all.hidden_processes {
            let hidden = plural(hidden, "process", "processes");
            let _ = write!(text, "; {hidden} of other users not searched, run as root");
        }
        Some(text)
    }

    fn is_about_owners(&self) -> bool {
        [&self.user, &self.pod, &self.namespace, &self.job].into_iter().any(Option::is_some)
    }

    fn is_owner(&self, owner: &OwnerView) -> bool {
        let is = |asked: &Option<String>, has: Option<&String>| {
            asked.as_ref().is_none_or(|asked| has == Some(asked))
        };
        let uid = owner.uid.map(|uid| uid.to_string());
        let has_pod = |asked: &String| owner.pod.as_ref().is_some_and(|pod| pod.starts_with(asked));
        (is(&self.user, Some(&owner.user)) || is(&self.user, uid.as_ref()))
            && self.pod.as_ref().is_none_or(has_pod)
            && is(&self.namespace, owner.namespace.as_ref())
            && is(&self.job, owner.slurm_job.as_ref())
    }
}

/// Known names, those that are most like the one asked for first.
fn near(asked: &str, known: BTreeSet<&str>) -> String {
    let mut known: Vec<&str> = known.into_iter().collect();
    sort_by_likeness(asked, &mut known);
    let more = if known.len() > MAX_NEAR { ", …" } else { "" };
    known.truncate(MAX_NEAR);
    printable(&known.join(", ")).into_owned() + more
}

/// Whether exactly one device of one vendor is named so.
fn has_one(report: &HostReport, asked: &str) -> Result<(), NoSuchDevice> {
    let named = || report.devices.iter().filter(|one| is_named(one, asked));
    let with_vendor = |one: &Device| device_name(&one.vendor, one.index, true);
    let list = |devices: Vec<String>| devices.join(", ");
    let vendors: BTreeSet<_> = named().map(|device| &device.vendor).collect();
    let asked = asked.to_owned();
    match vendors.len() {
        0 => {
            let present = report.devices.iter().map(|one| report.name(one)).collect();
            Err(NoSuchDevice::Absent { asked, present: list(present) })
        }
        1 => Ok(()),
        _ => {
            let present = list(named().map(with_vendor).collect());
            Err(NoSuchDevice::Ambiguous { asked, present })
        }
    }
}

fn is_named(device: &Device, asked: &str) -> bool {
    let by_vendor = || {
        let (vendor, index) = asked.split_once(':')?;
        (vendor == device.vendor && index == device.index.to_string()).then_some(())
    };
    let by_address = || {
        let [asked, known] = [asked, device.pci_address.as_deref()?].map(PciAddress::parse);
        (asked? == known?).then_some(())
    };
    device.uuid == asked
        || device.index.to_string() == asked
        || by_vendor().or_else(by_address).is_some()
}

impl SortKey {
    fn sort(self, processes: &mut [Process]) {
        processes.sort_by_key(|process| process.owner.pid);
        match self {
            Self::Memory => processes.sort_by_key(|process| Reverse(process.memory_bytes)),
            Self::Util => processes.sort_by(|one, other| {
                let busy = |process: &Process| process.utilization.unwrap_or(-1.0);
                busy(other).total_cmp(&busy(one))
            }),
            Self::Pid => {}
            Self::Owner => {
                processes.sort_by(|one, other| one.owner.owner.cmp(&other.owner.owner));
            }
            Self::User => processes.sort_by(|one, other| one.owner.user.cmp(&other.owner.user)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::who::{Holder, Others};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        selection: Selection,
    }

    fn process(pid: u32, uid: u32, pod: Option<&str>, memory: i64) -> Process {
        let owner = OwnerView {
            pid,
            uid: Some(uid),
            user: format!("user{uid}"),
            pod: pod.map(Into::into),
            namespace: pod.map(|_| "ml".into()),
            slurm_job: pod.is_none().then(|| "4242".into()),
            ..OwnerView::default()
        };
        Process { owner, memory_bytes: Some(memory), ..Process::default() }
    }

    fn report() -> HostReport {
        let device = |index, processes| Device {
            uuid: format!("GPU-{index}"),
            index,
            processes,
            others: Some(Others { processes: 3, ..Others::default() }),
            memory_unattributed_bytes: Some(5),
            ..Device::default()
        };
        let devices = vec![
            device(0, vec![process(1, 7, Some("trainer-0"), 1), process(2, 8, None, 4)]),
            device(1, vec![process(1, 7, Some("trainer-0"), 2)]),
        ];
        let held =
            |pid, uid| Holder { owner: process(pid, uid, None, 0).owner, ..Holder::default() };
        let holders = vec![held(1, 7), held(2, 8)];
        HostReport { devices, holders, ..HostReport::default() }
    }

    /// PIDs by device, processes in all, holders.
    fn select(words: &[&str]) -> (Vec<Vec<u32>>, usize, usize) {
        let line = Line::try_parse_from(["gpuwho"].iter().chain(words)).unwrap();
        let chosen = line.selection.apply(report()).unwrap();
        let pids = |device: &Device| device.processes.iter().map(|on| on.owner.pid).collect();
        let devices = chosen.devices.iter().map(pids).collect();
        (devices, chosen.totals.processes, chosen.holders.len())
    }

    #[test]
    fn owners_are_chosen_by_what_they_are_called() {
        let trainer = (vec![vec![1], vec![1]], 1, 1);
        for words in [["--user", "user7"], ["--user", "7"]] {
            assert_eq!(select(&words), trainer, "{words:?}");
        }
        let of_pod = (vec![vec![1], vec![1]], 1, 0);
        for words in [["--pod", "trainer"], ["--namespace", "ml"]] {
            assert_eq!(select(&words), of_pod, "{words:?}");
        }
        assert_eq!(select(&["--job", "4242"]), (vec![vec![2]], 1, 2));
        assert_eq!(select(&["--job", "42"]), (vec![], 0, 0), "not a part of a job's number");
    }

    /// Of a filter that matches nothing: what is said.
    fn no_match(words: &[&str], report: &HostReport) -> Option<String> {
        let line = Line::try_parse_from(["gpuwho"].iter().chain(words)).unwrap();
        let chosen = line.selection.apply(report.clone()).unwrap();
        line.selection.no_match(report, &chosen)
    }

    #[test]
    fn a_filter_that_matches_nothing_says_so_with_the_names_that_are_there() {
        let report = report();
        let said = |words: &[&str]| no_match(words, &report).unwrap();
        let on = "on 2 accelerators; there are:";
        assert_eq!(said(&["--job", "4243"]), format!("no process of job 4243 {on} 4242"));
        assert_eq!(said(&["-u", "user9"]), format!("no process of user user9 {on} user7, user8"));
        assert_eq!(
            said(&["--gpu", "1", "-n", "mm"]),
            format!("no process of namespace mm {on} ml")
        );
        assert_eq!(said(&["--pod", "x", "--job", "4242"]).matches("there are").count(), 2);
        assert_eq!(no_match(&["--job", "4242"], &report), None);
        assert_eq!(no_match(&[], &report), None);
        let hidden = HostReport { hidden_processes: 3, ..report.clone() };
        let text = no_match(&["--user", "eve"], &hidden).unwrap();
        assert!(text.ends_with("; 3 processes of other users not searched, run as root"), "{text}");
    }

    #[test]
    fn what_others_have_on_the_device_of_the_owner_that_was_asked_for_is_said() {
        let line = Line::try_parse_from(["gpuwho", "--user", "user7"]).unwrap();
        let chosen = line.selection.apply(report()).unwrap();
        let others = chosen.devices.iter().map(|device| device.others.clone().unwrap());
        let others: Vec<_> = others.map(|others| (others.processes, others.memory_bytes)).collect();
        assert_eq!(others, [(4, Some(4)), (3, None)]);
        assert_eq!(chosen.devices[0].memory_unattributed_bytes, Some(5));
    }

    #[test]
    fn devices_are_chosen_by_index_or_uuid_and_one_that_is_not_there_is_named() {
        assert_eq!(select(&["--gpu", "1"]).0, [vec![1]]);
        assert_eq!(select(&["--gpu", "GPU-1,0"]).0, [vec![2, 1], vec![1]]);
        let line = Line::try_parse_from(["gpuwho", "--gpu", "9"]).unwrap();
        let error = line.selection.apply(report()).unwrap_err().to_string();
        assert_eq!(error, "no device `9`; there are: 0, 1");
        let none = HostReport { devices: Vec::new(), ..report() };
        assert_eq!(line.selection.apply(none).unwrap().devices, Vec::new());
    }

    #[test]
    fn an_index_that_two_vendors_have_needs_the_vendor() {
        let mut mixed = report();
        for (device, vendor) in mixed.devices.iter_mut().zip(["nvidia", "amd"]) {
            (device.index, device.vendor) = (0, vendor.to_owned());
            device.pci_address =
                Some(format!("00000000:{}7:00.1", if vendor == "amd" { 2 } else { 1 }));
        }
        let select = |gpu: &str| {
            let line = Line::try_parse_from(["gpuwho", "--gpu", gpu]).unwrap();
            let chosen = line.selection.apply(mixed.clone());
            let uuids = |report: HostReport| {
                report.devices.into_iter().map(|device| device.uuid).collect::<Vec<_>>()
            };
            chosen.map(uuids).map_err(|error| error.to_string())
        };
        assert_eq!(select("0").unwrap_err(), "device 0 of which vendor? say nvidia:0, amd:0");
        assert_eq!(select("2").unwrap_err(), "no device `2`; there are: nvidia:0, amd:0");
        let second = Ok(vec!["GPU-1".to_owned()]);
        for words in ["amd:0", "GPU-1", "0000:27:00.1"] {
            assert_eq!(select(words), second, "{words}");
        }
        assert!(select("0000:27:00.0").is_err(), "another function");
        assert_eq!(select("nvidia:0,amd:0").unwrap().len(), 2);
    }

    #[test]
    fn processes_are_in_the_order_that_was_asked_for() {
        assert_eq!(select(&[]).0, [vec![2, 1], vec![1]], "the largest first");
        assert_eq!(select(&["--sort", "pid"]).0, [vec![1, 2], vec![1]]);
        assert_eq!(select(&["--sort", "user"]).0, [vec![1, 2], vec![1]]);
    }
}

//! Who is on each accelerator, now: what `gpuwho` alone prints, and what the control socket
//! answers.

mod others;

pub use others::Others;

use crate::attribute::suppliers;
use crate::attribute::{Method, Owner};
use crate::collect::status::Standing;
use crate::text::printable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The whole answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Who {
    /// Host name.
    pub host: String,
    /// The agent's version, or of the command that read for itself.
    pub version: String,
    /// Every device seen.
    pub devices: Vec<Device>,
    /// Every process seen to hold a device, those that ended lately included.
    pub holders: Vec<Holder>,
    /// Every source of data.
    pub sources: Vec<Source>,
    /// Others' processes are left out of `devices` and `holders`.
    #[serde(default)]
    pub others_hidden: bool,
    /// How many processes that are.
    #[serde(default)]
    pub hidden_processes: usize,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// UUID.
    pub uuid: String,
    /// Index in the driver's order.
    pub index: u32,
    /// Product name.
    pub model: String,
    /// `ok`, `lost`, `hung`, `failing`, `released`, `missing`, `replaced`, `no_driver`.
    pub state: String,
    /// Why, in the driver's words; empty when it answers.
    pub reason: String,
    /// Seconds since the last good reading.
    pub read_age_seconds: Option<f64>,
    /// Busy fraction.
    pub utilization: Option<f64>,
    /// Memory in use.
    pub memory_used_bytes: Option<i64>,
    /// Memory there is.
    pub memory_limit_bytes: Option<i64>,
    /// Power drawn.
    pub power_watts: Option<f64>,
    /// Temperature of the die.
    pub temperature_celsius: Option<f64>,
    /// Its MIG instances.
    #[serde(default)]
    pub instances: Vec<Instance>,
    /// Processes the driver lists.
    pub processes: Vec<Process>,
    /// Those of them that are not named to who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<Others>,
}

/// A MIG instance of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// UUID.
    pub uuid: String,
    /// GPU instance id.
    pub gpu_instance: u32,
    /// Compute instance id.
    pub compute_instance: Option<u32>,
    /// `3g.20gb`.
    pub profile: Option<String>,
    /// Memory in use.
    pub memory_used_bytes: Option<i64>,
    /// Memory there is.
    pub memory_limit_bytes: Option<i64>,
}

/// A process on a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Whose it is.
    #[serde(flatten)]
    pub owner: Person,
    /// `compute`, `graphics`, `mps`, `mps_server`.
    #[serde(default)]
    pub kind: Option<String>,
    /// UUID of the MIG instance it is in.
    #[serde(default)]
    pub instance: Option<String>,
    /// Its device memory.
    pub memory_bytes: Option<i64>,
    /// Fraction of time it kept the multiprocessors busy.
    pub utilization: Option<f64>,
}

/// A process that holds a device node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// Whose it is.
    #[serde(flatten)]
    pub owner: Person,
    /// Device nodes it opened.
    pub nodes: Vec<String>,
    /// UUIDs of the MIG instances these nodes grant.
    #[serde(default)]
    pub instances: Vec<String>,
    /// Whether it has ended.
    pub exited: bool,
}

/// An owner, flat, as the table and JSON show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Person {
    /// PID on the host.
    pub pid: u32,
    /// When it started, in 1/100 s since boot: with the PID the process's identity. 0 where it is
    /// not known.
    pub start_ticks: u64,
    /// Command name.
    pub comm: String,
    /// User name, or the number.
    pub user: String,
    /// Real user id; absent where nothing is known of the process.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Pod namespace.
    pub namespace: Option<String>,
    /// Pod name, or its UID where the name is unknown.
    pub pod: Option<String>,
    /// Pod UID.
    pub pod_uid: Option<String>,
    /// Container name.
    pub container: Option<String>,
    /// Container id.
    pub container_id: Option<String>,
    /// Slurm job.
    pub slurm_job: Option<String>,
    /// Slurm step.
    pub slurm_step: Option<String>,
    /// Slurm task on this node.
    pub slurm_task: Option<String>,
    /// systemd unit.
    pub unit: Option<String>,
    /// `cgroup`, `kernel`, `slurmstepd`, `pending` or `none`.
    pub method: String,
    /// What it says of itself and nothing proves, by attribute.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, String>,
}

/// A source of data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// Name.
    pub name: String,
    /// State.
    pub state: String,
    /// Why.
    pub reason: String,
    /// What to do.
    pub remedy: String,
    /// Failed readings.
    pub errors: u64,
    /// Restarts of its child.
    pub restarts: u64,
    /// What it lost, by reason.
    pub dropped: BTreeMap<String, u64>,
}

impl Person {
    /// An owner that is known.
    pub fn of(owner: &Owner) -> Self {
        let pod = owner.workload.pod.as_ref();
        let slurm = owner.workload.slurm.as_ref();
        let text = |text: &std::sync::Arc<str>| printable(text).into_owned();
        Self {
            pid: owner.process.pid,
            start_ticks: owner.process.start_ticks,
            comm: text(&owner.comm),
            user: owner.user.as_ref().map_or_else(|| owner.uid.to_string(), text),
            uid: Some(owner.uid),
            namespace: pod.and_then(|pod| pod.namespace.as_ref().map(text)),
            pod: pod.map(|pod| pod.name.as_ref().map_or_else(|| pod.uid.to_string(), text)),
            pod_uid: pod.map(|pod| pod.uid.to_string()),
            container: pod.and_then(|pod| pod.container.as_ref().map(text)),
            container_id: owner.workload.container.as_ref().map(ToString::to_string),
            slurm_job: slurm.map(|slurm| text(&slurm.number())),
            slurm_step: slurm.and_then(|slurm| slurm.step.as_ref().map(text)),
            slurm_task: slurm.and_then(|slurm| slurm.task.as_ref().map(text)),
            unit: owner.workload.unit.as_ref().map(text),
            method: match owner.method {
                // One that may still be found is more than one of whom nothing is known.
                Method::Pending => "pending",
                found => found.as_str(),
            }
            .into(),
            claims: owner
                .workload
                .claimed
                .each()
                .map(|(key, name)| (key.name.to_owned(), printable(name).into_owned()))
                .collect(),
        }
    }

    /// A process the driver names and nothing else is known of.
    pub fn unknown(pid: u32) -> Self {
        Self { pid, comm: "?".into(), user: "?".into(), method: "none".into(), ..Self::default() }
    }

    /// The workload in a few words: the pod, the job, the unit, the container or the user.
    pub fn workload(&self) -> String {
        if let Some(pod) = &self.pod {
            let namespace = self.namespace.as_ref().map_or(String::new(), |ns| format!("{ns}/"));
            let container = self.container.as_ref().map_or(String::new(), |c| format!(" [{c}]"));
            return format!("{namespace}{pod}{container}");
        }
        if let Some(job) = &self.slurm_job {
            let step = self.slurm_step.as_ref().map_or(String::new(), |step| format!(".{step}"));
            let task =
                self.slurm_task.as_ref().map_or(String::new(), |task| format!(" task {task}"));
            return format!("slurm {job}{step}{task}");
        }
        if let Some(container) = &self.container_id {
            return format!("container {}", container.get(..12).unwrap_or(container));
        }
        self.unit.clone().unwrap_or_else(|| "-".into())
    }
}

impl Source {
    /// A source as it stands on the board.
    pub fn of(name: &str, standing: &Standing) -> Self {
        let report = &standing.report;
        Self {
            name: name.into(),
            state: report.state.as_str().into(),
            reason: printable(&report.reason).into_owned(),
            remedy: report.remedy.clone(),
            errors: report.errors,
            restarts: report.restarts,
            dropped: report.dropped.iter().map(|(why, n)| (why.as_str().into(), *n)).collect(),
        }
    }

    /// Whether a person who asks who is on the devices should hear of it.
    fn is_amiss(&self) -> bool {
        let is_usual = self.state == "absent" && suppliers::is_supplier(&self.name);
        self.state != "ready" && !is_usual
    }
}

impl Who {
    /// The table a person reads.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let processes: usize = self.devices.iter().map(Device::count).sum();
        // Writing to a String cannot fail, so the results below are of no interest.
        let _ = writeln!(
            out,
            "{}: {} on {}",
            self.host,
            plural(processes, "process", "processes"),
            plural(self.devices.len(), "accelerator", "accelerators")
        );
        if !self.devices.is_empty() {
            let _ = writeln!(
                out,
                "\nGPU  MODEL                       UTIL          MEMORY    POWER   TEMP"
            );
        }
        for device in &self.devices {
            device.render(&mut out, self.others_hidden);
        }
        let only_held: Vec<_> =
            self.holders.iter().filter(|h| !h.exited && !self.listed(h)).collect();
        if !only_held.is_empty() {
            let _ = writeln!(out, "\nhold a device node, not on the driver's list:");
        }
        for holder in only_held {
            let nodes = holder.nodes.join(" ");
            let _ = writeln!(out, "{}", row(&holder.owner, &nodes, self.others_hidden));
        }
        if self.hidden_processes > 0 {
            let processes = plural(self.hidden_processes, "process", "processes");
            let are = if self.hidden_processes == 1 { "is" } else { "are" };
            let _ = writeln!(
                out,
                "\n{processes} of others {are} not named (agent.show_others); root sees all"
            );
        }
        for source in self.sources.iter().filter(|source| source.is_amiss()) {
            let _ = write!(out, "\n{} is {}: {}", source.name, source.state, source.reason);
            if !source.remedy.is_empty() {
                let _ = write!(out, "\n  remedy: {}", source.remedy);
            }
        }
        if !out.ends_with('\n') {
            out.push('\n');
        }
        out
    }

    fn listed(&self, holder: &Holder) -> bool {
        let mut processes = self.devices.iter().flat_map(|device| &device.processes);
        processes.any(|process| process.owner.pid == holder.owner.pid)
    }
}

impl Device {
    /// Everything but who is on it.
    fn without_processes(&self) -> Self {
        Self {
            uuid: self.uuid.clone(),
            model: self.model.clone(),
            state: self.state.clone(),
            reason: self.reason.clone(),
            instances: self.instances.clone(),
            processes: Vec::new(),
            others: None,
            ..*self
        }
    }

    /// How many processes are on it.
    fn count(&self) -> usize {
        self.processes.len() + self.others.as_ref().map_or(0, |others| others.processes)
    }

    fn render(&self, out: &mut String, is_narrow: bool) {
        let memory = part_of(self.memory_used_bytes, self.memory_limit_bytes);
        let _ = write!(
            out,
            "{:>3}  {:<26}{:>6}{:>16}{:>9}{:>7}",
            self.index,
            self.model,
            self.utilization.map_or("-".into(), percent),
            memory,
            self.power_watts.map_or("-".into(), |watts| format!("{watts:.0} W")),
            self.temperature_celsius.map_or("-".into(), |celsius| format!("{celsius:.0} C")),
        );
        if self.state != "ok" {
            let _ = write!(out, "  {}", self.state);
            if let Some(age) = self.read_age_seconds {
                let _ = write!(out, ", last read {age:.0} s ago");
            }
            if !self.reason.is_empty() {
                let _ = write!(out, ": {}", self.reason);
            }
        }
        out.push('\n');
        let known = |uuid: &String| self.instances.iter().any(|instance| instance.uuid == *uuid);
        let outside = |process: &&Process| !process.instance.as_ref().is_some_and(known);
        let render = |process: &Process, out: &mut String| process.render(out, is_narrow);
        self.processes.iter().filter(outside).for_each(|process| render(process, out));
        for instance in &self.instances {
            instance.render(out);
            let inside = |process: &&Process| process.instance.as_ref() == Some(&instance.uuid);
            self.processes.iter().filter(inside).for_each(|process| render(process, out));
        }
        if let Some(others) = &self.others {
            let processes = plural(others.processes, "process", "processes");
            let (memory, busy) = use_of(others.memory_bytes, others.utilization);
            let processes = format!("{processes} of others");
            let line = format!("       {processes:<54}{memory:>9} {busy:>6}");
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
}

impl Instance {
    fn render(&self, out: &mut String) {
        let compute = self.compute_instance.map_or(String::new(), |ci| format!("/{ci}"));
        let name = format!("MIG {}{compute}", self.gpu_instance);
        let profile = self.profile.as_deref().unwrap_or("?");
        let memory = part_of(self.memory_used_bytes, self.memory_limit_bytes);
        let line = format!("     {name:<10}{profile:<16}{:>6}{memory:>16}", "-");
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

impl Process {
    fn render(&self, out: &mut String, is_narrow: bool) {
        let (memory, busy) = use_of(self.memory_bytes, self.utilization);
        let note = match self.kind.as_deref() {
            Some("mps_server") => "  MPS server",
            Some("mps") => "  MPS",
            _ => "",
        };
        let rest = format!("{memory:>9} {busy:>6}{note}");
        let _ = writeln!(out, "{}", row(&self.owner, &rest, is_narrow));
    }
}

/// Where only the own processes are named, the user needs no column.
fn row(owner: &Person, rest: &str, is_narrow: bool) -> String {
    let (workload, comm, pid) = (owner.workload(), &owner.comm, owner.pid);
    let row = if is_narrow {
        format!("       {workload:<28} {comm:<15} {pid:>7}  {rest}")
    } else {
        format!("       {workload:<38} {:<10} {comm:<15} {pid:>7}  {rest}", owner.user)
    };
    row.trim_end().to_owned()
}

/// Memory and time, as a process's row ends.
fn use_of(memory: Option<i64>, busy: Option<f64>) -> (String, String) {
    let memory = memory.map_or(String::new(), |bytes| format!("{:.1} GiB", gib(bytes)));
    (memory, busy.map_or(String::new(), percent))
}

/// Used memory of all there is.
fn part_of(used: Option<i64>, limit: Option<i64>) -> String {
    match (used, limit) {
        (Some(used), Some(limit)) => format!("{:.1}/{:.1} GiB", gib(used), gib(limit)),
        _ => "-".into(),
    }
}

fn gib(bytes: i64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::cgroup::parse_path;
    use crate::attribute::party::PartyId;
    use crate::catalog::attributes::SYSTEMD_UNIT;
    use crate::ids::ProcKey;
    use std::sync::Arc;

    fn person(pid: u32, comm: &str) -> Person {
        Person { pid, comm: comm.into(), user: "alice".into(), ..Person::default() }
    }

    #[test]
    fn the_table_names_the_device_then_who_is_on_it() {
        let pod = Person {
            namespace: Some("ml".into()),
            pod: Some("trainer-0".into()),
            container: Some("pytorch".into()),
            ..person(4711, "python3")
        };
        let who = Who {
            host: "node1".into(),
            devices: vec![Device {
                index: 0,
                model: "NVIDIA H100 80GB HBM3".into(),
                state: "ok".into(),
                utilization: Some(0.87),
                memory_used_bytes: Some(60 << 30),
                memory_limit_bytes: Some(80 << 30),
                power_watts: Some(512.4),
                processes: vec![Process {
                    owner: pod,
                    memory_bytes: Some(40 << 30),
                    utilization: Some(0.5),
                    ..Process::default()
                }],
                ..Device::default()
            }],
            ..Who::default()
        };
        let expected = "\
node1: 1 process on 1 accelerator

GPU  MODEL                       UTIL          MEMORY    POWER   TEMP
  0  NVIDIA H100 80GB HBM3       87 %   60.0/80.0 GiB    512 W      -
       ml/trainer-0 [pytorch]                 alice      python3            4711   40.0 GiB   50 %
";
        assert_eq!(who.render(), expected, "\n{}", who.render());
    }

    #[test]
    fn processes_stand_under_their_instance_and_mps_is_said() {
        let process = |pid, instance: Option<&str>, kind: &str| Process {
            owner: person(pid, "python3"),
            kind: Some(kind.into()),
            instance: instance.map(Into::into),
            memory_bytes: Some(3 << 30),
            utilization: None,
        };
        let instance = |uuid: &str, gpu_instance, used: i64| Instance {
            uuid: uuid.into(),
            gpu_instance,
            compute_instance: Some(0),
            profile: Some("3g.20gb".into()),
            memory_used_bytes: Some(used << 30),
            memory_limit_bytes: Some(20 << 30),
        };
        let device = Device {
            model: "NVIDIA A100-SXM4-40GB".into(),
            state: "ok".into(),
            memory_used_bytes: Some(9 << 30),
            memory_limit_bytes: Some(40 << 30),
            instances: vec![instance("MIG-a", 1, 3), instance("MIG-b", 2, 6)],
            processes: vec![
                process(10, Some("MIG-b"), "compute"),
                process(11, None, "mps_server"),
                process(12, Some("MIG-a"), "mps"),
            ],
            ..Device::default()
        };
        let mut table = String::new();
        device.render(&mut table, false);
        let expected = "  \
  0  NVIDIA A100-SXM4-40GB          -    9.0/40.0 GiB        -      -
       -                                      alice      python3              11    3.0 GiB         MPS server
     MIG 1/0   3g.20gb              -    3.0/20.0 GiB
       -                                      alice      python3              12    3.0 GiB         MPS
     MIG 2/0   3g.20gb              -    6.0/20.0 GiB
       -                                      alice      python3              10    3.0 GiB
";
        assert_eq!(table, expected, "\n{table}");
    }

    #[test]
    fn names_that_others_have_chosen_reach_no_terminal_unchanged() {
        let path = "/system.slice/\u{202e}x\x1b[2J.service";
        let owner = Owner {
            process: ProcKey { pid: 7, start_ticks: 1 },
            comm: Arc::from("\x1b[2Jroot\n"),
            uid: 7,
            user: None,
            cgroup: Some(Arc::from(path)),
            workload: parse_path(path),
            method: Method::Proc,
            nodes: Vec::new(),
            exited_ns: None,
            party: PartyId::UNATTRIBUTED,
        };
        let person = Person::of(&owner);
        let names = (person.unit.as_deref(), &*person.comm);
        assert_eq!(names, (Some("\u{fffd}x\u{fffd}[2J.service"), "\u{fffd}[2Jroot\u{fffd}"));
        let unit = owner.attributes();
        let unit = unit.get(&SYSTEMD_UNIT).map(ToString::to_string);
        assert_eq!(unit, person.unit, "an attribute is no other");
    }

    #[test]
    fn a_holder_without_work_on_the_driver_s_list_is_shown() {
        let holder = Holder {
            owner: person(7, "idle"),
            nodes: vec!["/dev/nvidia0".into()],
            ..Holder::default()
        };
        let who = Who { holders: vec![holder], ..Who::default() };
        assert!(who.render().contains("not on the driver's list"), "{}", who.render());
    }

    #[test]
    fn a_source_that_is_not_well_says_why_and_what_to_do() {
        let source = Source {
            name: "nvidia".into(),
            state: "absent".into(),
            reason: "no libnvidia-ml.so.1".into(),
            remedy: "install the driver".into(),
            ..Source::default()
        };
        let who = Who { sources: vec![source], ..Who::default() };
        let table = who.render();
        assert!(
            table.contains("nvidia is absent: no libnvidia-ml.so.1\n  remedy: install"),
            "{table}"
        );
    }
}

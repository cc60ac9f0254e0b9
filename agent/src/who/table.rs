//! The table that a person reads.

use super::{Device, Holder, HostReport, Instance, OwnerView, Process};
use std::fmt::Write as _;

impl HostReport {
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
fn row(owner: &OwnerView, rest: &str, is_narrow: bool) -> String {
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
    use crate::who::Source;

    fn person(pid: u32, comm: &str) -> OwnerView {
        OwnerView { pid, comm: comm.into(), user: "alice".into(), ..OwnerView::default() }
    }

    #[test]
    fn the_table_names_the_device_then_who_is_on_it() {
        let pod = OwnerView {
            namespace: Some("ml".into()),
            pod: Some("trainer-0".into()),
            container: Some("pytorch".into()),
            ..person(4711, "python3")
        };
        let who = HostReport {
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
            ..HostReport::default()
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
    fn a_holder_without_work_on_the_driver_s_list_is_shown() {
        let holder = Holder {
            owner: person(7, "idle"),
            nodes: vec!["/dev/nvidia0".into()],
            ..Holder::default()
        };
        let who = HostReport { holders: vec![holder], ..HostReport::default() };
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
        let who = HostReport { sources: vec![source], ..HostReport::default() };
        let table = who.render();
        assert!(
            table.contains("nvidia is absent: no libnvidia-ml.so.1\n  remedy: install"),
            "{table}"
        );
    }
}

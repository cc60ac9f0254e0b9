//! The table that a person reads: a line for each device and, under it, one for each owner's process
//! in the same columns of memory and use. It takes the screen's width: names are elided in their
//! middle first, then columns are left out from the right.

mod columns;

use self::columns::Columns;
use super::engines;
use super::{Device, Holder, HostReport, Instance, Process, Source};
use gpuwho_devices::DEVICES;
use gpuwho_model::screen::{self, Screen, Style, clean, left, right};
use gpuwho_model::text::plural;
use gpuwho_owners::attribute::view::OwnerView;
use gpuwho_pipeline::health::report::ConditionView;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::SystemTime;

/// Before the name of a model, and of an owner.
const INDENT: usize = 5;
/// Health conditions under a device; `gpuwho health` has all.
const MAX_CONDITIONS: usize = 3;

/// One line, before its place is known.
enum Row {
    Device {
        index: String,
        model: String,
        state: String,
        values: Values,
    },
    Process {
        owner: String,
        user: String,
        pid: String,
        command: String,
        values: Values,
    },
    /// Of what no single process is: a MIG instance, others' processes, a rest.
    Part {
        name: String,
        values: Values,
    },
    /// A sentence about the device above.
    Reason(String),
}

/// What stands in the columns that devices and processes share, and behind them.
#[derive(Default)]
struct Values {
    memory: String,
    busy: String,
    power: String,
    temperature: String,
    note: &'static str,
}

impl HostReport {
    /// The table a person reads on this screen at this time.
    pub fn render(&self, screen: Screen, now: SystemTime) -> String {
        let rows: Vec<Row> = self.devices.iter().flat_map(Self::rows).collect();
        let held = self.only_held();
        let holders = held.iter().map(|holder| Row::process(&holder.owner, Values::default()));
        let holders: Vec<Row> = holders.collect();
        let mut columns = Columns::of(&rows, &holders);
        if self.others_hidden {
            // All that are named are the reader's own.
            columns.user = 0;
        }
        let columns = columns.fit(screen.width());
        let title = screen.wrap(0, &self.title(screen.width()));
        let mut out = format!("{}\n", screen.paint(Style::Heading, title.trim_end()));
        if !rows.is_empty() {
            out.push('\n');
            out.push_str(&columns.header(screen, rows.iter().any(Row::is_process)));
        }
        for row in &rows {
            out.push_str(&row.render(&columns, screen));
        }
        if !holders.is_empty() {
            out.push('\n');
            out.push_str(&screen.wrap(0, "Have a device open and are on no driver's list:"));
        }
        for (holder, row) in held.iter().zip(&holders) {
            let room = screen.width().saturating_sub(columns.left() + 2);
            let line = row.left(&columns, screen);
            let line = format!("{line}  {}", screen::elide(&nodes(&holder.nodes), room));
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out.push_str(&engines::table(&self.engines, screen));
        out.push_str(&self.remarks(screen, now));
        out
    }

    fn title(&self, width: usize) -> String {
        let Self { host, totals, .. } = self;
        let processes = plural(totals.processes, "process", "processes");
        let devices = plural(totals.devices, "accelerator", "accelerators");
        let silent = totals.devices - totals.devices_ok.min(totals.devices);
        let silent = if silent == 0 { String::new() } else { format!(", {silent} not answering") };
        let text = if totals.devices == 0 {
            ": no accelerator".to_owned()
        } else {
            format!(": {processes} on {devices}{silent}")
        };
        format!("{}{text}", screen::elide(&clean(host), width / 2))
    }

    fn rows(device: &Device) -> Vec<Row> {
        let mut rows = vec![Row::device(device)];
        if device.state != "ok" {
            let age = device.read_age_seconds.map(|age| format!("last read {age:.0} s ago"));
            let reason = Some(device.reason.clone()).filter(|reason| !reason.is_empty());
            let words: Vec<_> = [age, reason].into_iter().flatten().collect();
            rows.extend((!words.is_empty()).then(|| Row::Reason(words.join(": "))));
        }
        let reason = |one: &ConditionView| {
            let ConditionView { severity, condition, reason, .. } = one;
            Row::Reason(format!("{severity}: {reason} ({condition})"))
        };
        rows.extend(device.health.iter().take(MAX_CONDITIONS).map(reason));
        rows.extend(device.rows_in(None));
        for instance in &device.instances {
            rows.push(Row::instance(instance));
            rows.extend(device.rows_in(Some(instance)));
        }
        if let Some(others) = &device.others {
            let name = format!("{} of others", plural(others.processes, "process", "processes"));
            let values = use_of(others.memory_bytes, others.utilization);
            rows.push(Row::Part { name, values });
        }
        let rest = |bytes: Option<i64>| Some(use_of(Some(bytes?), None));
        for (name, values) in [
            ("all processes together", device.exclusive(false).map(about)),
            ("shared, not split", rest(device.memory_unsplittable_bytes)),
            ("unattributed", rest(device.memory_unattributed_bytes)),
        ] {
            rows.extend(values.map(|values| Row::Part { name: name.into(), values }));
        }
        rows
    }

    /// Who has a device open and is not on the driver's list, by PID.
    fn only_held(&self) -> Vec<&Holder> {
        let processes = self.devices.iter().flat_map(|device| &device.processes);
        let listed: BTreeSet<u32> = processes.map(|process| process.owner.pid).collect();
        let is_listed = |holder: &&Holder| listed.contains(&holder.owner.pid);
        let mut held: Vec<_> = self.holders.iter().filter(|held| !is_listed(held)).collect();
        held.sort_by_key(|holder| holder.owner.pid);
        held
    }

    /// The vendors that were looked for in vain, where no device was found.
    fn looked_for(&self) -> Option<String> {
        let vendor = |name: &str| DEVICES.iter().find(|vendor| vendor.name == name);
        let absent = self.sources.iter().filter(|source| source.state == "absent");
        let absent = absent.filter_map(|source| Some((source, vendor(&source.name)?)));
        // A library may be missing; a vendor without one has no device here.
        let (libraries, files): (Vec<_>, Vec<_>) =
            absent.partition(|(_, vendor)| vendor.library.is_some());
        let with_reason =
            |(source, _): (&Source, _)| format!("{} ({})", source.name, source.reason);
        let names = files.into_iter().map(|(source, _)| source.name.clone());
        let parts: Vec<_> = libraries.into_iter().map(with_reason).chain(names).collect();
        let is_shown = self.totals.devices == 0 && !parts.is_empty();
        let looked = parts.join(", ");
        is_shown.then(|| format!("looked for {looked}; `gpuwho doctor --all` says what to do"))
    }

    /// What stands under the table: what is hidden, what has happened, what does not work.
    fn remarks(&self, screen: Screen, now: SystemTime) -> String {
        let mut out = String::new();
        let mut remark = |style: Style, text: &str| {
            for line in screen.wrap(0, text).lines() {
                let _ = writeln!(out, "{}", screen.paint(style, line));
            }
        };
        if self.hidden_processes > 0 {
            let processes = plural(self.hidden_processes, "process", "processes");
            let are = if self.hidden_processes == 1 { "is" } else { "are" };
            let text = "not named (agent.show_others); root sees all";
            remark(Style::Plain, &format!("{processes} of others {are} {text}"));
        }
        if let Some(text) = self.events.sentence(now) {
            let is_bad = self.events.critical > 0;
            remark(if is_bad { Style::Bad } else { Style::Warning }, &text);
        }
        let is_vendor = |name: &str| DEVICES.iter().any(|vendor| vendor.name == name);
        if let Some(text) = self.looked_for() {
            remark(Style::Plain, &text);
        }
        let all_ok = self.totals.devices_ok == self.totals.devices;
        for source in &self.sources {
            // What is degraded for one device stands with the device; without any, names are missed
            // by nobody.
            let is_shown = if is_vendor(&source.name) {
                all_ok || source.state != "degraded"
            } else {
                self.totals.devices > 0
            };
            if is_shown && source.is_failing() {
                let remedy = Some(&source.remedy).filter(|remedy| !remedy.is_empty());
                let remedy = remedy.map_or(String::new(), |remedy| format!("; remedy: {remedy}"));
                let (name, state, reason) = (&source.name, &source.state, &source.reason);
                remark(Style::Warning, &format!("{name} is {state}: {reason}{remedy}"));
            }
        }
        if out.is_empty() { out } else { format!("\n{out}") }
    }
}

impl Row {
    fn device(device: &Device) -> Self {
        let watts = |watts: f64| format!("{watts:.0} W");
        let celsius = |celsius: f64| format!("{celsius:.0} C");
        let values = Values {
            memory: part_of(device.memory_used_bytes, device.memory_limit_bytes),
            busy: device.utilization.map_or("-".into(), percent),
            power: device.power_watts.map_or("-".into(), watts),
            temperature: device.temperature_celsius.map_or("-".into(), celsius),
            note: "",
        };
        let (model, state) = (clean(&device.model).into(), clean(&device.state).into());
        Self::Device { index: device.index.to_string(), model, state, values }
    }

    fn instance(instance: &Instance) -> Self {
        let compute = instance.compute_instance.map_or(String::new(), |ci| format!("/{ci}"));
        let profile = clean(instance.profile.as_deref().unwrap_or("?"));
        // AMD's partitions have a mode (`cpx`), MIG instances a size (`1g.10gb`) and their own parts.
        let is_mig = instance.compute_instance.is_some() || profile.contains('.');
        let kind = if is_mig { "MIG" } else { "partition" };
        let name = format!("{kind} {}{compute} {profile}", instance.gpu_instance);
        let memory = part_of(instance.memory_used_bytes, instance.memory_limit_bytes);
        Self::Part { name, values: Values { memory, ..Values::default() } }
    }

    fn process(owner: &OwnerView, values: Values) -> Self {
        Self::Process {
            owner: clean(owner.owner.as_deref().unwrap_or("-")).into(),
            user: clean(&owner.user).into(),
            pid: owner.pid.to_string(),
            command: clean(&owner.comm).into(),
            values,
        }
    }

    fn is_process(&self) -> bool {
        matches!(self, Self::Process { .. })
    }

    fn values(&self) -> Option<&Values> {
        match self {
            Self::Device { values, .. }
            | Self::Process { values, .. }
            | Self::Part { values, .. } => Some(values),
            Self::Reason(_) => None,
        }
    }

    /// What is to the left of memory.
    fn left(&self, columns: &Columns, screen: Screen) -> String {
        let wide = columns.left();
        match self {
            Self::Device { index, model, state, .. } => {
                let model = left(model, wide.saturating_sub(INDENT + 1 + columns.state));
                let state = screen.paint(style_of(state), &left(state, columns.state));
                format!("{index:>3}  {model} {state}")
            }
            Self::Process { owner, user, pid, command, .. } => {
                let mut line = format!("{:INDENT$}{}", "", left(owner, columns.name));
                let cells = [
                    (left(user, columns.user), columns.user),
                    (right(pid, columns.pid), columns.pid),
                    (left(command, columns.command), columns.command),
                ];
                for (cell, _) in cells.iter().filter(|(_, wide)| *wide > 0) {
                    let _ = write!(line, " {cell}");
                }
                left(&line, wide)
            }
            Self::Part { name, .. } => left(&format!("{:INDENT$}{name}", ""), wide),
            Self::Reason(_) => String::new(),
        }
    }

    fn render(&self, columns: &Columns, screen: Screen) -> String {
        if let Self::Reason(text) = self {
            return screen.wrap(INDENT, text);
        }
        let mut line = self.left(columns, screen);
        if let Some(values) = self.values() {
            let cells = [(&values.memory, columns.memory), (&values.busy, columns.busy)];
            let device =
                [(&values.power, columns.power), (&values.temperature, columns.temperature)];
            let is_device = matches!(self, Self::Device { .. });
            let device = device.into_iter().filter(|_| is_device);
            for (cell, wide) in cells.into_iter().chain(device).filter(|(_, wide)| *wide > 0) {
                let _ = write!(line, " {}", right(cell, wide));
            }
            let room = screen.width().saturating_sub(columns.total());
            let room = room + columns.behind();
            if !values.note.is_empty() && room > values.note.len() {
                let _ = write!(line, "  {}", values.note);
            }
        }
        format!("{}\n", line.trim_end())
    }
}

impl Device {
    /// The processes in one of its instances, or in none that is known.
    fn rows_in(&self, instance: Option<&Instance>) -> Vec<Row> {
        let known = |uuid: &&String| self.instances.iter().any(|known| known.uuid == **uuid);
        let place = |process: &Process| process.instance.as_ref().filter(known).cloned();
        let uuid = instance.map(|instance| instance.uuid.clone());
        let inside = self.processes.iter().filter(|process| place(process) == uuid);
        let alone = || self.exclusive(true).map(about);
        let row = |process: &Process| {
            let own = || use_of(process.memory_bytes, process.utilization);
            let values = Values { note: process.note(), ..alone().unwrap_or_else(own) };
            Row::process(&process.owner, values)
        };
        inside.map(row).collect()
    }
}

impl Process {
    fn note(&self) -> &'static str {
        match self.kind.as_deref() {
            Some("mps_server") => "MPS server",
            Some("mps") => "MPS",
            _ => "",
        }
    }
}

fn style_of(state: &str) -> Style {
    match state {
        "ok" => Style::Good,
        "released" | "replaced" => Style::Warning,
        _ => Style::Bad,
    }
}

/// Nodes of devices, without those that belong to all of a driver's.
fn nodes(all: &[String]) -> String {
    let is_device = |node: &&String| node.ends_with(|last: char| last.is_ascii_digit());
    let names: Vec<&String> = all.iter().filter(is_device).collect();
    let names = if names.is_empty() { all.iter().collect() } else { names };
    let mut short: Vec<String> = Vec::new();
    let mut last_folder = "";
    for node in names {
        let (before, name) = node.rsplit_once('/').unwrap_or(("", node));
        // The folder, too, where the name is a number alone: `vfio/0,1`.
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        let folder = before.rsplit('/').next().filter(|_| is_number).unwrap_or_default();
        match short.last_mut().filter(|_| is_number && folder == last_folder) {
            Some(last) => *last = format!("{last},{name}"),
            None if folder.is_empty() => short.push(name.to_owned()),
            None => short.push(format!("{folder}/{name}")),
        }
        last_folder = folder;
    }
    clean(&short.join(" ")).into_owned()
}

/// Memory and time of a process.
fn use_of(memory: Option<i64>, busy: Option<f64>) -> Values {
    let memory = memory.map_or(String::new(), |bytes| format!("{:.1} GiB", gib(bytes)));
    Values { memory, busy: busy.map_or(String::new(), percent), ..Values::default() }
}

/// The device's own, which is its only owner's: marked, since no process is known to have it.
fn about((bytes, busy): (i64, Option<f64>)) -> Values {
    let busy = busy.map_or(String::new(), |busy| format!("~{}", percent(busy)));
    Values { memory: format!("~{:.1} GiB", gib(bytes)), busy, ..Values::default() }
}

/// Used memory of all there is.
fn part_of(used: Option<i64>, limit: Option<i64>) -> String {
    match (used, limit) {
        (Some(used), Some(limit)) => format!("{:.1}/{:.1} GiB", gib(used), gib(limit)),
        // AWS's driver does not tell how much there is.
        (Some(used), None) => format!("{:.1} GiB", gib(used)),
        (None, _) => "-".into(),
    }
}

fn gib(bytes: i64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

#[cfg(test)]
mod tests;

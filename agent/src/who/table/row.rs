//! A line of the table, and the texts of its cells.

use super::INDENT;
use super::columns::Columns;
use crate::who::{Device, Instance};
use gpuwho_model::screen::{self, Screen, Style, clean, left, right};
use gpuwho_owners::attribute::view::OwnerView;
use std::fmt::Write as _;

/// One line, before its place is known.
pub(super) enum Row {
    Device {
        index: String,
        model: String,
        state: String,
        values: Values,
    },
    Process {
        owner: String,
        /// The owner without its container, where the whole has no room.
        short: String,
        user: String,
        pid: String,
        command: String,
        /// A job's name, or a container's image.
        detail: String,
        values: Values,
    },
    /// Of what no single process is: a MIG instance, others' processes, a rest.
    Part {
        name: String,
        values: Values,
    },
    /// A sentence about the device above.
    Reason {
        style: Style,
        text: String,
    },
}

/// What stands in the columns that devices and processes share, and behind them.
#[derive(Default)]
pub(super) struct Values {
    pub(super) memory: String,
    pub(super) busy: String,
    pub(super) power: String,
    pub(super) temperature: String,
}

impl Row {
    pub(super) fn device(device: &Device, index: &str) -> Self {
        let watts = |watts: f64| format!("{watts:.0} W");
        let celsius = |celsius: f64| format!("{celsius:.0} C");
        let values = Values {
            memory: part_of(device.memory_used_bytes, device.memory_limit_bytes),
            busy: device.utilization.map_or("-".into(), percent),
            power: device.power_watts.map_or("-".into(), watts),
            temperature: device.temperature_celsius.map_or("-".into(), celsius),
        };
        let (model, state) = (clean(&device.model).into(), clean(&device.state).into());
        Self::Device { index: clean(index).into(), model, state, values }
    }

    pub(super) fn instance(instance: &Instance) -> Self {
        let compute = instance.compute_instance.map_or(String::new(), |ci| format!("/{ci}"));
        let profile = clean(instance.profile.as_deref().unwrap_or("?"));
        // AMD's partitions have a mode (`cpx`), MIG instances a size (`1g.10gb`) and their own parts.
        let is_mig = instance.compute_instance.is_some() || profile.contains('.');
        let kind = if is_mig { "MIG" } else { "partition" };
        let name = format!("{kind} {}{compute} {profile}", instance.gpu_instance);
        // A compute instance uses the memory of its GPU instance, which stands with the first.
        let known = instance.memory_used_bytes.is_some();
        let memory = part_of(instance.memory_used_bytes, instance.memory_limit_bytes);
        let memory = Some(memory).filter(|_| known).unwrap_or_default();
        Self::Part { name, values: Values { memory, ..Values::default() } }
    }

    pub(super) fn process(owner: &OwnerView, note: &str, values: Values) -> Self {
        let text = |text: &Option<String>| clean(text.as_deref().unwrap_or_default()).into_owned();
        let [whole, short] = names(owner);
        Self::Process {
            owner: whole,
            short,
            user: clean(&owner.user).into(),
            pid: owner.pid.to_string(),
            command: clean(&owner.comm).into_owned() + note,
            detail: text(if owner.job_name.is_some() { &owner.job_name } else { &owner.image }),
            values,
        }
    }

    pub(super) fn is_process(&self) -> bool {
        matches!(self, Self::Process { .. })
    }

    pub(super) fn values(&self) -> Option<&Values> {
        match self {
            Self::Device { values, .. }
            | Self::Process { values, .. }
            | Self::Part { values, .. } => Some(values),
            Self::Reason { .. } => None,
        }
    }

    /// What is to the left of memory; an owner that has no room stands on lines of its own.
    fn left(&self, columns: &Columns, screen: Screen) -> String {
        let wide = columns.left();
        match self {
            Self::Device { index, model, state, .. } => {
                let model = left(model, wide.saturating_sub(columns.index + 3 + columns.state));
                let state = screen.paint(style_of(state), &left(state, columns.state));
                format!("{}  {model} {state}", right(index, columns.index))
            }
            Self::Process { owner, short, user, pid, .. } => {
                let fits = |owner: &&String| screen::width(owner) <= columns.name;
                let own = [owner, short].into_iter().find(fits);
                let mut line = match own {
                    Some(_) => String::new(),
                    None => screen.fold(INDENT, short),
                };
                let name = left(own.map_or("", String::as_str), columns.name);
                let _ = write!(line, "{:INDENT$}{name}", "");
                let cells = [
                    (left(user, columns.user), columns.user),
                    (right(pid, columns.pid), columns.pid),
                ];
                for (cell, _) in cells.iter().filter(|(_, wide)| *wide > 0) {
                    let _ = write!(line, " {cell}");
                }
                line
            }
            Self::Part { name, .. } => left(&format!("{:INDENT$}{name}", ""), wide),
            Self::Reason { .. } => String::new(),
        }
    }

    pub(super) fn render(&self, columns: &Columns, screen: Screen) -> String {
        if let Self::Reason { style, text } = self {
            return screen.wrap_painted(*style, INDENT, text);
        }
        let mut line = self.left(columns, screen);
        let mut cell = |cell: String, wide: usize| {
            if wide > 0 {
                // Writing to a String cannot fail.
                let _ = write!(line, " {cell}");
            }
        };
        let mut number = |text: &str, wide: usize| cell(right(text, wide), wide);
        if let Some(values) = self.values() {
            number(&values.memory, columns.memory);
            number(&values.busy, columns.busy);
        }
        match self {
            Self::Device { values, .. } => {
                number(&values.power, columns.power);
                number(&values.temperature, columns.temperature);
            }
            Self::Process { command, detail, .. } => {
                cell(left(command, columns.command), columns.command);
                cell(left(detail, columns.detail), columns.detail);
            }
            _ => {}
        }
        format!("{}\n", line.trim_end())
    }

    /// The line of a process that no driver lists: its nodes stand where others have memory.
    pub(super) fn held(&self, nodes: &str, columns: &Columns, screen: Screen) -> String {
        let Self::Process { command, .. } = self else { return String::new() };
        let line = format!("{} {}", self.left(columns, screen), left(command, columns.command));
        let room = screen.width().saturating_sub(columns.left() + columns.command + 3);
        format!("{line}  {}", screen::elide(nodes, room)).trim_end().to_owned()
    }
}

/// An owner, and the same without its container or its task.
pub(crate) fn names(owner: &OwnerView) -> [String; 2] {
    let text = |text: &Option<String>| clean(text.as_deref().unwrap_or_default()).into_owned();
    let whole = clean(owner.owner.as_deref().unwrap_or("-")).into_owned();
    let last = match &owner.slurm_job {
        Some(_) if owner.pod.is_none() => format!(" task {}", text(&owner.slurm_task)),
        _ => format!(" [{}]", text(&owner.container)),
    };
    let short = whole.strip_suffix(&last).unwrap_or(&whole).to_owned();
    [whole, short]
}

/// The colour of a device's state, and of a condition's severity.
pub(super) fn style_of(state: &str) -> Style {
    match state {
        "ok" => Style::Good,
        "released" | "replaced" | "warning" => Style::Warning,
        _ => Style::Bad,
    }
}

/// Nodes of devices, without those that belong to all of a driver's.
pub(super) fn nodes(all: &[String]) -> String {
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
pub(super) fn use_of(memory: Option<i64>, busy: Option<f64>) -> Values {
    let memory = memory.map_or(String::new(), |bytes| format!("{:.1} GiB", gib(bytes)));
    Values { memory, busy: busy.map_or(String::new(), percent), ..Values::default() }
}

/// The device's own, which is its only owner's: marked, since no process is known to have it.
pub(super) fn about((bytes, busy): (i64, Option<f64>)) -> Values {
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

pub(crate) fn gib(bytes: i64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

pub(crate) fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

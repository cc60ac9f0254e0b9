//! The table that a person reads: a line for each device and, under it, one for each owner's process
//! in the same columns of memory and use. Ids are never cut: an owner that has no room beside the
//! columns has a line of its own.

mod columns;
mod remarks;
pub(crate) mod row;

use self::columns::Columns;
use self::row::{Row, Values, about, nodes, use_of};
use super::engines;
use super::{Device, Holder, HostReport, Instance, Process};
use gpuwho_model::screen::{self, Screen, Style, clean};
use gpuwho_model::text::{plural, ranges};
use gpuwho_pipeline::health::report::ConditionView;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::SystemTime;

/// Before the name of a model, and of an owner.
const INDENT: usize = 5;
/// Health conditions under a device; `gpuwho health` has all.
const MAX_CONDITIONS: usize = 3;
/// Processes that no driver lists; `--json` has all.
const MAX_HELD: usize = 16;

impl HostReport {
    /// The table a person reads on this screen at this time.
    pub fn render(&self, screen: Screen, now: SystemTime) -> String {
        let common = self.common_conditions();
        let rows: Vec<Row> =
            self.devices.iter().flat_map(|device| self.rows(device, &common)).collect();
        let held = self.only_held();
        let holders = held.iter().map(|holder| Row::process(&holder.owner, "", Values::default()));
        let holders: Vec<Row> = holders.take(MAX_HELD).collect();
        let mut columns = Columns::of(&rows, &holders);
        if self.others_hidden {
            // All that are named are the reader's own.
            columns.user = 0;
        }
        let columns = columns.fit(screen.width());
        let title = screen.wrap(0, &self.title(screen.width()));
        let mut out = format!("{}\n", screen.paint(Style::Heading, title.trim_end()));
        for (condition, devices) in &common {
            let ConditionView { severity, condition, reason, .. } = condition;
            let text = format!("{severity} on GPU {}: {reason} ({condition})", ranges(devices));
            out.push_str(&screen.wrap_painted(row::style_of(severity), 0, &text));
        }
        if !rows.is_empty() {
            out.push('\n');
            out.push_str(&columns.header(screen, rows.iter().any(Row::is_process)));
        }
        for row in &rows {
            out.push_str(&row.render(&columns, screen));
        }
        if !holders.is_empty() {
            let text = "Have a device open, but the driver does not list them:";
            let _ = write!(out, "\n{}", screen.wrap(0, text));
        }
        for (holder, row) in held.iter().zip(&holders) {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{}", row.held(&nodes(&holder.nodes), &columns, screen));
        }
        if let more @ 1.. = held.len() - holders.len() {
            out.push_str(&screen.wrap(INDENT, &format!("and {more} more: gpuwho --json")));
        }
        out.push_str(&engines::table(&self.engines, screen));
        out.push_str(&self.remarks(screen, now));
        out
    }

    fn title(&self, width: usize) -> String {
        let Self { host, totals, .. } = self;
        let processes = plural(totals.processes, "process", "processes");
        let devices = plural(totals.devices, "accelerator", "accelerators");
        let is_released = |device: &&Device| device.state == "released";
        let released = self.devices.iter().filter(is_released).count();
        let silent = totals.devices.saturating_sub(totals.devices_ok + released);
        let counts = [(released, "released"), (silent, "not answering")].into_iter();
        let mut text = if totals.devices == 0 {
            "no accelerator".to_owned()
        } else {
            format!("{processes} on {devices}")
        };
        for (count, state) in counts.filter(|(count, _)| *count > 0) {
            // Writing to a String cannot fail.
            let _ = write!(text, ", {count} {state}");
        }
        format!("{}: {text}", screen::elide(&clean(host), width / 2))
    }

    /// Conditions that several devices have, and which devices these are.
    fn common_conditions(&self) -> Vec<(&ConditionView, Vec<String>)> {
        let mut all = self.conditions(|_| true);
        all.retain(|(_, devices)| devices.len() > 1);
        all
    }

    /// What is wrong with some devices, each with the names of all that have the same.
    pub(crate) fn conditions(
        &self,
        is_wanted: impl Fn(&Device) -> bool,
    ) -> Vec<(&ConditionView, Vec<String>)> {
        let mut all: Vec<(&ConditionView, Vec<String>)> = Vec::new();
        for device in self.devices.iter().filter(|device| is_wanted(device)) {
            for condition in &device.health {
                match all.iter_mut().find(|(known, _)| known.is_alike(condition)) {
                    Some((_, devices)) => devices.push(self.name(device)),
                    None => all.push((condition, vec![self.name(device)])),
                }
            }
        }
        all
    }

    fn rows(&self, device: &Device, common: &[(&ConditionView, Vec<String>)]) -> Vec<Row> {
        let mut rows = vec![Row::device(device, &self.name(device))];
        // A released device is not read on purpose.
        if device.state != "ok" && device.state != "released" {
            let age = device.read_age_seconds.map(|age| format!("last read {age:.0} s ago"));
            let reason = Some(device.reason.clone()).filter(|reason| !reason.is_empty());
            let words: Vec<_> = [age, reason].into_iter().flatten().collect();
            let text = (!words.is_empty()).then(|| words.join(": "));
            rows.extend(text.map(|text| Row::Reason { style: Style::Plain, text }));
        }
        let reason = |one: &ConditionView| {
            let ConditionView { severity, condition, reason, .. } = one;
            let text = format!("{severity}: {reason} ({condition})");
            Row::Reason { style: row::style_of(severity), text }
        };
        let is_own = |one: &&ConditionView| !common.iter().any(|(common, _)| common.is_alike(one));
        rows.extend(device.health.iter().filter(is_own).take(MAX_CONDITIONS).map(reason));
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
            Row::process(&process.owner, process.note(), alone().unwrap_or_else(own))
        };
        inside.map(row).collect()
    }
}

impl Process {
    fn note(&self) -> &'static str {
        match self.kind.as_deref() {
            Some("mps_server") => " (MPS server)",
            Some("mps") => " (MPS)",
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests;

//! What stands under the table: what is hidden, what has happened, what does not work.

use crate::who::{HostReport, Source};
use gpuwho_devices::{DEVICES, Vendor};
use gpuwho_model::screen::{Screen, Style};
use gpuwho_model::text::{are, plural};
use std::time::SystemTime;

impl HostReport {
    /// The vendors that were looked for in vain, where no device was found.
    fn looked_for(&self) -> Option<String> {
        let vendor = |name: &str| DEVICES.iter().find(|vendor| vendor.name == name);
        let absent = self.sources.iter().filter(|source| source.state == "absent");
        let absent = absent.filter_map(|source| Some((source, vendor(&source.name)?)));
        // A library may be missing; a vendor without one has no device here.
        let (libraries, files): (Vec<_>, Vec<_>) =
            absent.partition(|(_, vendor)| vendor.library.is_some());
        let with_reason =
            |(source, _): (&Source, &Vendor)| format!("{} ({})", source.name, source.reason);
        let names = files.into_iter().map(|(source, _)| source.name.clone());
        let parts: Vec<_> = libraries.into_iter().map(with_reason).chain(names).collect();
        let is_shown = self.totals.devices == 0 && !parts.is_empty();
        let looked = parts.join(", ");
        is_shown.then(|| format!("no driver found for: {looked}; see `gpuwho doctor --all`"))
    }

    pub(super) fn remarks(&self, screen: Screen, now: SystemTime) -> String {
        let mut out = String::new();
        let mut remark =
            |style: Style, text: &str| out.push_str(&screen.wrap_painted(style, 0, text));
        if self.hidden_processes > 0 {
            let processes = plural(self.hidden_processes, "process", "processes");
            let are = are(self.hidden_processes);
            let text = format!(
                "{processes} of other users {are} hidden; run as root, or set agent.show_others"
            );
            remark(Style::Plain, &text);
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

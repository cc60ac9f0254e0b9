//! Drivers with a known hole that whoever may use a device can reach: an account of a job, a pod. Says so in
//! `gpuwho doctor` and, once a start, as an event. Costs one comparison at the start.
//!
//! The table knows the branches that its sources name, and says nothing of others: a branch without a row
//! may have the holes too.

use gpuwho_model::config::{ConfigError, Section, Tables};
use serde::Deserialize;

/// Whose driver the table is about, as the inventory names it.
pub const VENDOR: &str = "nvidia";

/// What a driver's bulletin says.
#[derive(Debug, PartialEq, Eq)]
pub struct Advisory {
    /// Date of the bulletin.
    pub date: &'static str,
    /// The holes, and what a user of a device can do with each.
    pub holes: &'static str,
    /// Where it is told.
    pub source: &'static str,
    /// The first version of each branch without them.
    fixed: &'static [[u32; 3]],
}

/// Of NVIDIA's driver for Linux, the newest first.
const NVIDIA: &[Advisory] = &[
    // Versions: flatcar/Flatcar issue 2155 of 2026-06-01 ("update to >= 535.309.01, >= 580.159.03,
    // >= 595.71.05"), as in the bulletin.
    Advisory {
        date: "2026-05-26",
        holes: "CVE-2026-24190 (rights of the kernel), CVE-2026-24195 (a user hangs the driver), \
                CVE-2026-24197 (a change of MIG reaches other tenants)",
        source: "https://nvidia.custhelp.com/app/answers/detail/a_id/5821",
        fixed: &[[535, 309, 1], [580, 159, 3], [595, 71, 5]],
    },
    // Versions: flatcar/Flatcar issue 2010 of 2026-02-10 ("update to >= 535.288.01, 570.211.01").
    Advisory {
        date: "2026-02-10",
        holes: "CVE-2025-33219 (rights of the kernel by an integer overflow)",
        source: "https://www.cve.org/CVERecord?id=CVE-2025-33219",
        fixed: &[[535, 288, 1], [570, 211, 1]],
    },
];

/// The newest advisory about a version of NVIDIA's driver, and the version of its branch that has no such
/// hole.
pub fn of_nvidia(version: &str) -> Option<(&'static Advisory, String)> {
    let mut parts = version.trim().split('.').map(|part| part.parse::<u32>().ok());
    let (branch, minor) = (parts.next()??, parts.next()??);
    let running = [branch, minor, parts.next().flatten().unwrap_or(0)];
    NVIDIA.iter().find_map(|advisory| {
        let fixed = advisory.fixed.iter().find(|fixed| fixed[0] == branch)?;
        let [branch, minor, patch] = fixed;
        (running < *fixed).then(|| (advisory, format!("{branch}.{minor}.{patch:02}")))
    })
}

/// The advisory in one sentence.
pub fn sentence(version: &str, (advisory, fixed): &(&'static Advisory, String)) -> String {
    let Advisory { date, holes, source, .. } = advisory;
    format!(
        "NVIDIA's driver {version} has holes that users of its devices can reach: {holes}; {fixed} has not \
         ({date}, {source})"
    )
}

/// The section.
pub const SECTION: Section = Section::of::<RawAdvisories>("advisories", SAMPLE);

const SAMPLE: &str = "# Say in `gpuwho doctor`, and once a start as the event gpu.driver.vulnerable, that the driver has a known
# hole that users of its devices can reach.
#: enabled = true
";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawAdvisories {
    enabled: Option<bool>,
}

/// Whether drivers are compared with the table.
pub fn are_enabled(tables: &Tables) -> Result<bool, ConfigError> {
    let raw: RawAdvisories = tables.read(SECTION.name)?;
    Ok(raw.enabled.unwrap_or(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_before_the_mended_one_of_its_branch_has_the_holes() {
        let fixed = |version| of_nvidia(version).map(|(advisory, fixed)| (advisory.date, fixed));
        assert_eq!(fixed("580.95.05\n"), Some(("2026-05-26", "580.159.03".to_owned())));
        assert_eq!(fixed("535.288.01"), Some(("2026-05-26", "535.309.01".to_owned())));
        assert_eq!(fixed("570.133.20"), Some(("2026-02-10", "570.211.01".to_owned())));
        for other in
            ["580.159.03", "580.160", "595.71.05", "615.71.09", "450.80.02", "", "x.y", "580"]
        {
            assert_eq!(fixed(other), None, "{other}");
        }
        let known = of_nvidia("595.45.04").unwrap();
        let text = sentence("595.45.04", &known);
        assert!(text.contains("CVE-2026-24195") && text.contains("595.71.05 has not"), "{text}");
    }
}

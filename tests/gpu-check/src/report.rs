//! What came of the checks: one row each.

use serde::Serialize;
use std::fmt::{self, Display, Write as _};
use std::fs;
use std::time::SystemTime;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it must be.
    Pass,
    /// Not as it must be.
    Fail,
    /// It could not be tried here.
    Skip,
}

impl Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Skip => "skip",
        })
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What was checked.
    pub check: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// What was seen, and why it ended so; more lines are details below the row.
    pub seen: String,
}

impl Row {
    /// A row with what was seen.
    pub fn new(check: &'static str, verdict: Verdict, seen: impl Into<String>) -> Self {
        Self { check, verdict, seen: seen.into() }
    }

    /// A check that passed if that holds.
    pub fn judged(check: &'static str, holds: bool, seen: impl Into<String>) -> Self {
        Self::new(check, if holds { Verdict::Pass } else { Verdict::Fail }, seen)
    }

    /// A check that could not be tried.
    pub fn skip(check: &'static str, why: impl Display) -> Self {
        Self::new(check, Verdict::Skip, why.to_string())
    }

    /// A check that was tried and came to nothing.
    pub fn fail(check: &'static str, why: impl Display) -> Self {
        Self::new(check, Verdict::Fail, why.to_string())
    }
}

impl Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = self.verdict;
        let mut lines = self.seen.lines();
        write!(out, "{verdict}  {:<22}  {}", self.check, lines.next().unwrap_or_default())?;
        lines.try_for_each(|line| write!(out, "\n{:30}{line}", ""))
    }
}

/// The rows as a page that can be published: what was checked, where and when.
pub fn page(rows: &[Row]) -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let day = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let mut page = format!(
        "# gpuwho on a real driver\n\n{}, kernel {}; {}.\n\n| check | verdict | seen |\n|---|---|---|\n",
        day.split('T').next().unwrap_or_default(),
        kernel.trim(),
        summary(rows)
    );
    for Row { check, verdict, seen } in rows {
        let seen = seen.trim().replace('|', "\\|").replace('\n', "<br>");
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| {check} | {verdict} | {seen} |");
    }
    page
}

/// The last line: how many ended how.
pub fn summary(rows: &[Row]) -> String {
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    format!(
        "{} passed, {} failed, {} could not be tried",
        count(Verdict::Pass),
        count(Verdict::Fail),
        count(Verdict::Skip)
    )
}

#[cfg(test)]
mod tests {
    use super::{Row, Verdict, page, summary};

    #[test]
    fn a_rows_details_stand_below_what_was_seen() {
        let row = Row::judged("identity", false, "1 of 2 agree\nserial: smi 7, gpuwho 8");
        let text = "FAIL  identity                1 of 2 agree\n                              serial: smi 7, gpuwho 8";
        assert_eq!(row.to_string(), text);
        let rows = [row, Row::new("driver", Verdict::Pass, ""), Row::skip("load", "no libcuda")];
        assert_eq!(summary(&rows), "1 passed, 1 failed, 1 could not be tried");
        let page = page(&rows);
        let line = "| identity | FAIL | 1 of 2 agree<br>serial: smi 7, gpuwho 8 |";
        assert!(page.lines().any(|one| one == line), "{page}");
    }
}

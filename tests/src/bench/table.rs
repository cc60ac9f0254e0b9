//! The table of figures beside their targets.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    what: String,
    figure: String,
    target: Cow<'static, str>,
    verdict: Cow<'static, str>,
}

impl Row {
    /// A figure that has no target.
    pub fn plain(what: impl Into<String>, figure: impl Into<String>) -> Self {
        let (target, verdict) = <_>::default();
        Self { what: what.into(), figure: figure.into(), target, verdict }
    }

    /// A figure beside its target.
    pub fn against(
        what: impl Into<String>,
        figure: impl Into<String>,
        target: &'static str,
        met: bool,
    ) -> Self {
        let verdict = if met { "met" } else { "MISSED" }.into();
        Self { target: target.into(), verdict, ..Self::plain(what, figure) }
    }

    /// A figure that cannot be had here.
    pub fn missing(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { verdict: "not measured".into(), ..Self::plain(what, why) }
    }

    /// One that a benchmark has printed: `| what | figure | target | verdict |`, or the first two of them.
    pub fn parse(line: &str) -> Option<Self> {
        let cells = line.strip_prefix("| ")?.strip_suffix('|')?.split('|');
        let mut cells = cells.map(|cell| cell.trim().to_owned());
        let row = Self::plain(cells.next()?, cells.next()?);
        let mut more = || Cow::from(cells.next().unwrap_or_default());
        Some(Self { target: more(), verdict: more(), ..row })
    }

    /// Whether it is a part of the row above.
    pub fn is_detail(&self) -> bool {
        self.what.starts_with(' ')
    }
}

/// As Markdown, its columns aligned.
pub fn render(rows: &[Row]) -> String {
    let head = Row {
        what: "what".to_owned(),
        figure: "measured".to_owned(),
        target: "target".into(),
        verdict: "".into(),
    };
    let cells = |row: &Row| -> [String; 4] {
        [row.what.clone(), row.figure.clone(), row.target.to_string(), row.verdict.to_string()]
    };
    let all: Vec<_> = std::iter::once(&head).chain(rows).map(cells).collect();
    aligned(&all)
}

/// Rows of cells as Markdown, the first of them the head.
pub fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let mut widths = [0; COLUMNS];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string cannot fail.
            let _ = write!(text, "| {cell:<width$} ");
        }
        text.push_str("|\n");
        if number == 0 {
            let rule = widths.map(|width| format!("|{}", "-".repeat(width + 2))).concat();
            text.push_str(&rule);
            text.push_str("|\n");
        }
    }
    text
}

/// When and of what the figures are, and the machine, in a line.
pub fn source() -> String {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok();
        let text = output.filter(|output| output.status.success()).map(|output| output.stdout);
        text.map(|text| String::from_utf8_lossy(&text).trim().to_owned())
    };
    let unknown = || "unknown".to_owned();
    let date = said("date", &["-u", "+%F"]).unwrap_or_else(unknown);
    let commit = said("git", &["describe", "--always", "--exclude=*"]).unwrap_or_else(unknown);
    // Pages change with each table that is written; they are no part of what is measured.
    let is_clean = said("git", &["diff", "--quiet", "HEAD", "--", ".", ":!*.md"]).is_some();
    let dirty = if is_clean { "" } else { "-dirty" };
    let profile = match profile() {
        profile if profile == "release" => String::new(),
        profile => format!(", profile {profile}"),
    };
    format!("{date}, commit {commit}{dirty}{profile}, {}", machine())
}

/// The profile that this program, and with it the agent, was built with: its folder has the name.
pub fn profile() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().and_then(Path::file_name).unwrap_or_default();
    folder.to_string_lossy().into_owned()
}

/// The machine in a line.
pub fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "{cores} cores ({}), kernel {}, load before: {}",
        model.map_or("model unknown", |(_, model)| model),
        kernel.trim(),
        load.split(' ').next().unwrap_or_default()
    )
}

/// The middle of some figures; not a number without any.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_aligned_columns_and_says_what_was_missed() {
        let rows = [
            Row::against("memory", "20 MB", "15 MB", false),
            Row::missing("opens", "BPF: not allowed"),
        ];
        let expected = "\
| what   | measured         | target |              |
|--------|------------------|--------|--------------|
| memory | 20 MB            | 15 MB  | MISSED       |
| opens  | BPF: not allowed |        | not measured |
";
        assert_eq!(render(&rows), expected);
    }

    #[test]
    fn a_printed_row_is_read_as_it_is_written() {
        let row = Row::against("memory", "20 MB", "15 MB", false);
        assert_eq!(Row::parse("| memory | 20 MB | 15 MB | MISSED |"), Some(row));
        assert_eq!(Row::parse("| opens | 3 |"), Some(Row::plain("opens", "3")));
        assert_eq!(Row::parse("points of a tick: 3"), None);
    }

    #[test]
    fn the_median_is_one_of_the_figures() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]).to_string(), "2");
        assert!(median(Vec::new()).is_nan());
    }
}

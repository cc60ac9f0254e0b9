//! The threat model as a document that is tested: what it names is there, and has the value it says.

use super::Finding;
use super::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

const MODEL: &str = "agent/docs/threat-model.md";
/// What must be there.
pub(super) const PLACES: &[&str] = &[MODEL];
/// A test's name is a claim, a sentence: longer than the kernel's and others' functions that the text names.
const MIN_WORDS: usize = 5;
/// Beginnings of constants that are others': the kernel's, C's, the environment's.
const OTHERS: &[&str] = &[
    "CAP_", "O_", "SO_", "PT_", "STT_", "FUSE_", "SLURM_", "NCCL_", "KERN_", "PR_", "OTEL_",
    "CLONE_", "EM", "SCM_", "DAC_", "SYS_", "RSMI_", "NEURON_", "KCMP_", "PATH_MAX", "CVE", "ETOO",
    "BPF_", "GPUWHO_",
];
/// How far before a constant's name its value is looked for, in bytes.
const NEAR: usize = 48;

/// Every test, source and constant that the model names exists, and a constant has the value that stands
/// before it.
pub(super) fn model(tree: &Tree) -> Vec<Finding> {
    let functions = functions(tree);
    let constants = constants(tree);
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(tree.text(MODEL).unwrap_or_default().lines()) {
        let mut find = |rule, remedy| {
            findings.push(Finding { file: MODEL.to_owned(), line: number, rule, remedy });
        };
        for (at, span) in spans(line) {
            let name = span.rsplit("::").next().unwrap_or(span);
            if is_source(span) && !tree.files().any(|(path, _)| is_at(path, span)) {
                find("the threat model names sources that exist", format!("there is no {span}"));
            } else if is_claim(name) && !has_function(&functions, name) {
                find("the threat model names tests that exist", format!("there is no fn {name}"));
            } else if is_constant(name) {
                let Some(values) = constants.get(name) else {
                    let remedy = format!("there is no const {name}");
                    find("the threat model names constants that exist", remedy);
                    continue;
                };
                let said = value_before(line.get(..at).unwrap_or_default());
                let is_right = |said: f64| {
                    values
                        .iter()
                        .any(|value| value.is_none_or(|value: f64| (value - said).abs() < 1e-9))
                };
                if let Some(said) = said.filter(|said| !is_right(*said)) {
                    let remedy = format!("{name} is {values:?}, the text says {said}");
                    find("the threat model has the values of the code", remedy);
                }
            }
        }
    }
    findings
}

/// What stands between backticks, and where it begins.
fn spans(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    line.split('`').enumerate().filter_map(move |(place, span)| {
        let begin = at;
        at += span.len() + 1;
        (place % 2 == 1).then_some((begin, span))
    })
}

fn is_source(span: &str) -> bool {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-/.".contains(c);
    span.strip_suffix(".rs").is_some_and(|stem| stem.chars().all(is_path))
}

fn is_at(path: &str, span: &str) -> bool {
    path.strip_suffix(span).is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
}

fn is_claim(name: &str) -> bool {
    let stem = name.strip_suffix('…').unwrap_or(name);
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    stem.chars().all(is_word)
        && stem.split('_').filter(|word| !word.is_empty()).count() >= MIN_WORDS
}

fn has_function(functions: &BTreeSet<&str>, name: &str) -> bool {
    match name.strip_suffix('…') {
        Some(start) => {
            functions.range(start..).next().is_some_and(|found| found.starts_with(start))
        }
        None => functions.contains(name),
    }
}

fn is_constant(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    name.contains('_')
        && name.chars().all(is_word)
        && !OTHERS.iter().any(|prefix| name.starts_with(prefix))
}

fn functions(tree: &Tree) -> BTreeSet<&str> {
    let sources = tree.ending(".rs").flat_map(|(_, text)| text.lines());
    let name = |line: &'_ str| -> Option<(usize, usize)> {
        let begin = line.find("fn ")? + 3;
        let rest = line.get(begin..)?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        Some((begin, begin + end))
    };
    sources.filter_map(|line| line.get(name(line).map(|(begin, end)| begin..end)?)).collect()
}

/// The values of the constants of each name; `None` of one that is no plain number.
fn constants(tree: &Tree) -> BTreeMap<&str, Vec<Option<f64>>> {
    let mut constants: BTreeMap<&str, Vec<Option<f64>>> = BTreeMap::new();
    for (_, text) in tree.ending(".rs") {
        for part in text.split("const ").skip(1) {
            let Some((name, rest)) = part.split_once(':') else { continue };
            let Some((_, value)) = rest.split_once('=') else { continue };
            let value = value.split(';').next().unwrap_or_default();
            if name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_') {
                constants.entry(name).or_default().push(evaluate(value));
            }
        }
    }
    constants
}

/// A number, a product or a shift of numbers, or a duration in seconds.
fn evaluate(text: &str) -> Option<f64> {
    let text = text.trim().replace('_', "");
    for (unit, seconds) in [("millis", 1e-3), ("secs", 1.0), ("mins", 60.0), ("hours", 3600.0)] {
        let start = format!("Duration::from{unit}(");
        if let Some(rest) = text.strip_prefix(&start) {
            return Some(evaluate(rest.strip_suffix(')')?)? * seconds);
        }
    }
    if let Some((number, shift)) = text.split_once("<<") {
        return Some(evaluate(number)? * 2_f64.powf(evaluate(shift)?));
    }
    if let Some((one, other)) = text.split_once('*') {
        return Some(evaluate(one)? * evaluate(other)?);
    }
    text.parse().ok()
}

/// The number that stands last in a text, near its end, by its unit: `4,096 KiB (`.
fn value_before(text: &str) -> Option<f64> {
    let near = text.get(text.floor_char_boundary(text.len().saturating_sub(NEAR))..)?;
    let near = near.rsplit(['|', ';']).next()?;
    let words: Vec<&str> = near.split_ascii_whitespace().collect();
    let at = words.iter().rposition(|word| number(word).is_some())?;
    let unit = words.get(at + 1).copied().unwrap_or_default();
    let factor = match unit.trim_end_matches(['(', ',', ')']) {
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        "ms" => 1e-3,
        "min" | "minutes" => 60.0,
        _ => 1.0,
    };
    Some(number(words.get(at)?)? * factor)
}

fn number(word: &str) -> Option<f64> {
    let is_number = word.starts_with(|c: char| c.is_ascii_digit());
    is_number.then(|| word.replace(',', "").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "/// A bound.\nconst MAX_LINES: usize = 8 << 10;\nconst WAIT: Duration = \
        Duration::from_millis(250);\n    #[test]\n    fn a_line_without_end_is_cut() {}\n";

    fn remedies(model: &str) -> Vec<String> {
        let tree = Tree::of([(MODEL, model), ("agent/crates/collect/src/kmsg.rs", CODE)]);
        super::model(&tree).into_iter().map(|finding| finding.remedy).collect()
    }

    #[test]
    fn what_the_model_names_is_there_and_has_its_value() {
        for right in [
            "| lines | `kmsg.rs` | 8 KiB (`MAX_LINES`) | cut | `a_line_without_end_is_cut` |",
            "| lines | 8,192 bytes (`MAX_LINES`, the kernel's) | `events::a_line_without_end_is_…` |",
            "`CAP_SYS_ADMIN`, `register_for_each_vma`, `gpuwho.owner.refused`, `MAX_LINES`",
        ] {
            assert_eq!(remedies(right), [""; 0], "{right}");
        }
        assert_eq!(
            remedies("`a_line_that_is_gone_is_cut`"),
            ["there is no fn a_line_that_is_gone_is_cut"]
        );
        assert_eq!(remedies("`a_line_of_another_is_…`"), ["there is no fn a_line_of_another_is_…"]);
        assert_eq!(remedies("`kmsg/lines.rs`"), ["there is no kmsg/lines.rs"]);
        assert_eq!(remedies("`MAX_PARTIES`"), ["there is no const MAX_PARTIES"]);
        let wrong = "MAX_LINES is [Some(8192.0)], the text says 16384";
        assert_eq!(remedies("16,384 lines (`MAX_LINES`)"), [wrong]);
    }
}

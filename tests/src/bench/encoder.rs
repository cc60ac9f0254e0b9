//! The encoder's own benchmark against the SDK, run and read.

use super::BenchError;
use super::table::Row;
use std::process::Command;

/// Times less CPU.
const TARGET: f64 = 100.0;

/// Runs `cargo bench -p gpuwho --bench encode`; quick where `cargo xtask bench` has built it.
pub fn measure() -> Result<Vec<Row>, BenchError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(&cargo)
        .args(["bench", "--quiet", "--package", "gpuwho", "--bench", "encode"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .map_err(BenchError::os(cargo))?;
    let rows = rows(&String::from_utf8_lossy(&output.stdout));
    if rows.is_empty() {
        let what = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(BenchError::Strange { what, expected: "what an export costs" });
    }
    Ok(rows)
}

/// `points  encoder  µs  allocations  bytes  ratio`, a line for each side.
fn rows(text: &str) -> Vec<Row> {
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    let pairs = lines.windows(2).filter_map(|pair| match pair {
        [ours, sdk] => Some((ours.as_slice(), sdk.as_slice())),
        _ => None,
    });
    pairs
        .filter_map(|(ours, sdk)| match (ours, sdk) {
            ([points, "gpuwho", our, allocations, .., ratio], [_, "SDK", their, many, ..]) => {
                let figure = format!(
                    "{our} µs, {allocations} allocations; SDK {their} µs, {many} allocations: \
                     {ratio} times"
                );
                let met = ratio.parse::<f64>().is_ok_and(|ratio| ratio >= TARGET);
                Some(Row::against(format!("encoding {points} points"), figure, "≥ 100 times", met))
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_a_size_make_a_row() {
        let text = "points  encoder  µs  allocations  bytes  SDK µs / ours\n\
                    960  gpuwho  40.0  0  100  125\n\
                    960  SDK  5000.0  20000  100  1\n";
        let figure = "40.0 µs, 0 allocations; SDK 5000.0 µs, 20000 allocations: 125 times";
        let expected = Row::against("encoding 960 points", figure, "≥ 100 times", true);
        assert_eq!(rows(text), [expected]);
    }
}

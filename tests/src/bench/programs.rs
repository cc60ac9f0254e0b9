//! The benchmarks of `agent/benches`: each is a program that prints its table's rows, which are read here.

use super::BenchError;
use super::table::{Row, profile};
use std::process::Command;

/// Runs `cargo bench -p gpuwho --bench NAME`, built as this program is.
pub fn measure(name: &str, arguments: &[&str]) -> Result<Vec<Row>, BenchError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(&cargo)
        .args(["bench", "--quiet", "--locked", "--profile", &profile()])
        .args(["--package", "gpuwho", "--bench", name, "--"])
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .map_err(BenchError::os(cargo))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<Row> = text.lines().filter_map(Row::parse).collect();
    if rows.is_empty() {
        let what = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
        return Err(BenchError::Strange { what, expected: "what it has measured" });
    }
    Ok(rows)
}

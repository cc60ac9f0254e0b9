//! The vendor's own word: `nvidia-smi`, which reads the same driver by other code.

use std::collections::BTreeMap;
use std::io;
use std::process::Command;

/// Why it says nothing.
#[derive(Debug, thiserror::Error)]
pub enum SmiError {
    /// It is not there.
    #[error("no nvidia-smi: {0}")]
    Missing(#[from] io::Error),
    /// It failed.
    #[error("nvidia-smi: {0}")]
    Failed(String),
}

/// What it says of one GPU, by the names of its fields.
pub type Fields = BTreeMap<&'static str, String>;

/// Asks for fields of every GPU. A field that it does not know makes it fail, so each that one
/// version lacks is left out and the rest asked again.
pub fn gpus(fields: &[&'static str]) -> Result<Vec<Fields>, SmiError> {
    let mut fields = fields.to_vec();
    loop {
        let output = Command::new("nvidia-smi")
            .arg(format!("--query-gpu={}", fields.join(",")))
            .arg("--format=csv,noheader,nounits")
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(rows(&fields, &text));
        }
        let known = fields.len();
        fields.retain(|field| !text.contains(&format!("\"{field}\"")));
        if fields.is_empty() || fields.len() == known {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(SmiError::Failed(format!("{}{}", text.trim(), error.trim())));
        }
    }
}

fn rows(fields: &[&'static str], text: &str) -> Vec<Fields> {
    let row = |line: &str| {
        let values = line.split(',').map(str::trim);
        let reported =
            fields.iter().copied().zip(values).filter(|(_, value)| !value.starts_with('['));
        reported.map(|(field, value)| (field, value.to_owned())).collect()
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::{Fields, rows};

    #[test]
    fn a_field_that_a_gpu_does_not_have_is_left_out() {
        let reported = rows(&["name", "fan.speed"], "NVIDIA H200, [N/A]\nNVIDIA A10, 30\n\n");
        let first = Fields::from([("name", "NVIDIA H200".to_owned())]);
        let second =
            Fields::from([("name", "NVIDIA A10".to_owned()), ("fan.speed", "30".to_owned())]);
        assert_eq!(reported, [first, second]);
    }
}

//! Parses the Inspector's settings in a process's environment.

use gpuwho_owners::attribute::variables::{self, Wanted};
use std::io::{self, Read};
use std::path::PathBuf;

/// Bytes of a value: no path is longer (`PATH_MAX`).
const MAX_VALUE: usize = 4096;

const ENABLE: &str = "NCCL_INSPECTOR_ENABLE";
const DIRECTORY: &str = "NCCL_INSPECTOR_DUMP_DIR";
const INTERVAL: &str = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS";
/// Enables Prometheus text, for which 2.29 has its own interval.
const EXPOSITION: &str = "NCCL_INSPECTOR_PROM_DUMP";
/// Names the default directory.
const JOB: &str = "SLURM_JOBID";
const NAMES: [&str; 5] = [ENABLE, DIRECTORY, INTERVAL, EXPOSITION, JOB];
const PREFIXES: &[&[u8]] = &[b"NCCL_INSPECTOR_", JOB.as_bytes()];

/// The Inspector's settings in an environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InspectorEnv {
    /// Whether the Inspector is enabled.
    pub enabled: bool,
    /// Whether it writes while the program runs: without an interval no version writes records.
    pub dumps: bool,
    /// Where it writes; relative to the working directory in which the program started to
    /// communicate.
    pub directory: PathBuf,
}

impl InspectorEnv {
    /// Parses NUL-terminated variables.
    pub(super) fn read(source: impl Read) -> io::Result<Self> {
        let mut values: [Option<String>; NAMES.len()] = Default::default();
        let wanted = Wanted { prefixes: PREFIXES, max_value: MAX_VALUE };
        // The first of several variables with the same name counts, as for `getenv`.
        variables::read(source, 0, wanted, |name, value| {
            let place = NAMES.iter().position(|wanted| *wanted == name);
            if let Some(stored) = place.and_then(|at| values.get_mut(at)) {
                stored.get_or_insert_with(|| value.to_owned());
            }
        })?;
        Ok(Self::of(values))
    }

    fn of(values: [Option<String>; NAMES.len()]) -> Self {
        let [enable, directory, interval, exposition, job] = values;
        // Like `strtol`: accepts any text that starts with a non-zero number.
        let number = |text: Option<&String>| {
            let text = text.map(|text| text.trim_start()).unwrap_or_default();
            let end = text.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(text.len());
            text.get(..end).and_then(|digits| digits.parse::<i64>().ok())
        };
        let job = number(job.as_ref());
        let default = || match job {
            Some(job) => format!("nccl-inspector-{job}"),
            None => "nccl-inspector-unknown-jobid".to_owned(),
        };
        let is_on = |text: Option<&String>| number(text).is_some_and(|number| number != 0);
        let has_interval = number(interval.as_ref()).is_some_and(|interval| interval >= 0);
        Self {
            enabled: is_on(enable.as_ref()),
            dumps: has_interval || is_on(exposition.as_ref()),
            directory: directory.unwrap_or_else(default).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(environment: &str) -> InspectorEnv {
        InspectorEnv::read(environment.replace('\n', "\0").as_bytes()).unwrap()
    }

    #[test]
    fn directory_switch_and_interval_are_read_among_everything_else() {
        let text = "PATH=/bin\nNCCL_INSPECTOR_ENABLE=1\nSECRET=NCCL_INSPECTOR_DUMP_DIR=/no\n\
            NCCL_INSPECTOR_DUMP_DIR=/var/lib/inspector\nNCCL_INSPECTOR_DUMP_DIR=/second\n\
            NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500\n";
        let directory = "/var/lib/inspector".into();
        assert_eq!(parsed(text), InspectorEnv { enabled: true, dumps: true, directory });
    }

    #[test]
    fn without_a_directory_the_job_id_names_it() {
        let default = |text| parsed(text).directory.to_str().unwrap().to_owned();
        assert_eq!(default("SLURM_JOBID=4711\n"), "nccl-inspector-4711");
        assert_eq!(default("SLURM_JOBIDS=4711\n"), "nccl-inspector-unknown-jobid");
        assert_eq!(default(""), "nccl-inspector-unknown-jobid");
    }

    #[test]
    fn an_inspector_that_never_dumps_is_recognised() {
        let text = "NCCL_INSPECTOR_ENABLE=1\nNCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=-1\n";
        assert!(!parsed(text).dumps);
        assert!(!parsed("NCCL_INSPECTOR_ENABLE=1\n").dumps);
        assert!(!parsed("NCCL_INSPECTOR_ENABLE=0\n").enabled);
        assert!(parsed("NCCL_INSPECTOR_ENABLE=1\nNCCL_INSPECTOR_PROM_DUMP=1\n").dumps);
    }

    #[test]
    fn an_endless_value_is_not_stored() {
        let long = format!("NCCL_INSPECTOR_DUMP_DIR={}\n", "x".repeat(MAX_VALUE + 1));
        assert_eq!(parsed(&long).directory, PathBuf::from("nccl-inspector-unknown-jobid"));
    }
}

//! The Inspector's file names (`inspector.cc` of 2.28 to 2.30).

use serde::{Deserialize, Serialize};

/// The kind of an Inspector file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// `<hostname>-pid<pid>.log`: one record per line. The PID is the writer's in its own
    /// namespace.
    Records {
        /// The writer.
        pid: u32,
    },
    /// `nccl_inspector_metrics_<uuid>.prom`: Prometheus text, rewritten every 30 s or more.
    Exposition,
}

/// The kind of a file of this name; the kernel appends ` (deleted)` to the path of a removed file.
pub(super) fn kind(name: &str) -> Option<Kind> {
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    if let Some(stem) = name.strip_suffix(".log") {
        let (_host, pid) = stem.rsplit_once("-pid")?;
        let is_number = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
        let pid = is_number.then(|| pid.parse().ok())??;
        return Some(Kind::Records { pid });
    }
    let uuid = name.strip_prefix("nccl_inspector_metrics_")?.strip_suffix(".prom")?;
    (!uuid.is_empty()).then_some(Kind::Exposition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inspectors_files_are_recognised_by_name() {
        for (name, expected) in [
            ("node-a-pid11229.log", Some(Kind::Records { pid: 11_229 })),
            ("a-pid7-pid9.log", Some(Kind::Records { pid: 9 })),
            ("node-a-pid11229.log (deleted)", Some(Kind::Records { pid: 11_229 })),
            (
                "nccl_inspector_metrics_4a7d0e2c-0000-1111-2222-333344445555.prom",
                Some(Kind::Exposition),
            ),
            ("node-a-pid.log", None),
            ("node-a-pid+7.log", None),
            ("node-a-pid99999999999.log", None),
            ("nccl_inspector_metrics_.prom", None),
            ("training.log", None),
            ("", None),
        ] {
            assert_eq!(kind(name), expected, "{name}");
        }
    }
}

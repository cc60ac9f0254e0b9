//! The host's own names.

use crate::catalog::attributes::{self as attr, AttrSet};
use crate::paths::Paths;

/// What is known of this host, for the OTLP resource.
pub fn attributes(paths: &Paths) -> AttrSet {
    let mut set = AttrSet::new();
    set.set(&attr::HOST_NAME, name().as_str());
    set.set_some(&attr::HOST_ID, machine_id(paths).as_deref());
    set.set(&attr::OS_TYPE, "linux");
    set
}

/// The host's name.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The machine id, as OpenTelemetry's `host.id` wants it for a host that is not a cloud instance.
pub fn machine_id(paths: &Paths) -> Option<String> {
    let text = std::fs::read_to_string(paths.passwd.with_file_name("machine-id")).ok()?;
    let id = text.trim();
    (!id.is_empty()).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_machine_id_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::under(dir.path());
        assert_eq!(machine_id(&paths), None);
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        std::fs::write(dir.path().join("etc/machine-id"), "0123abc\n").unwrap();
        assert_eq!(machine_id(&paths), Some("0123abc".into()));
    }
}

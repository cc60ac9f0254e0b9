//! What an exporter asks other programs for: a folder for its `PATH`, with an `lspci` that lists the devices
//! of the fake library.

use crate::bench::BenchError;
use nvidia_ml::scenario::Scenario;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Makes the folder.
pub(super) fn make(folder: &Path, scenario: &Scenario) -> Result<PathBuf, BenchError> {
    let folder = folder.join("commands");
    fs::create_dir_all(&folder).map_err(BenchError::os(&folder))?;
    let program = folder.join("lspci");
    fs::write(&program, lspci(scenario)).map_err(BenchError::os(&program))?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))
        .map_err(BenchError::os(&program))?;
    Ok(folder)
}

/// As the real one lists an H100, by names or, with `-n`, by numbers.
fn lspci(scenario: &Scenario) -> String {
    let mut lists = [String::new(), String::new()];
    let kinds = [
        "3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)",
        "0302: 10de:2330 (rev a1)",
    ];
    for device in scenario.devices() {
        let address = device.text(&device.group.pci);
        // Without the domain, as there is but one.
        let address = address.split_once(':').map_or(&*address, |(_, rest)| rest);
        for (list, kind) in lists.iter_mut().zip(kinds) {
            // Writing to a string cannot fail.
            let _ = writeln!(list, "{address} {kind}");
        }
    }
    let [names, numbers] = lists;
    format!(
        "#!/bin/sh\ncase \"$*\" in\n*-n*) cat <<'END'\n{numbers}END\n;;\n*) cat <<'END'\n{names}END\n;;\nesac\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::scenario_path;
    use std::process::Command;

    #[test]
    fn each_device_is_on_the_bus() {
        let folder = tempfile::tempdir().unwrap();
        let scenario = Scenario::load(&scenario_path("h100x8").unwrap()).unwrap();
        let program = make(folder.path(), &scenario).unwrap().join("lspci");
        let lines = |arguments: &[&str]| {
            let output = Command::new(&program).args(arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let (names, numbers) = (lines(&[]), lines(&["-n"]));
        assert_eq!([names.lines().count(), numbers.lines().count()], [8, 8]);
        assert!(names.starts_with("10:00.0 3D controller: NVIDIA Corporation "), "{names}");
        assert!(numbers.starts_with("10:00.0 0302: 10de:"), "{numbers}");
    }
}

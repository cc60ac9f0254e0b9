//! Where a vendor's library is. Looked up before a child is started for it, so that a host without
//! the vendor's devices costs a few `stat` calls now and then and no process.

use super::Vendor;
use crate::paths::Paths;
use std::env;
use std::path::{Path, PathBuf};

/// Where distributions, the vendor's operator and managed clusters put vendor libraries, below the
/// root of the host.
const PLACES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/usr/lib/wsl/lib",
];

/// The library to load: at the configured path, else the first found of the configured or usual name,
/// else the bare name if the kernel driver is loaded, because then the loader may know better.
pub(super) fn find(
    vendor: &Vendor,
    configured: Option<&Path>,
    paths: &Paths,
) -> Result<PathBuf, String> {
    let is_name = |path: &&Path| path.parent() == Some(Path::new(""));
    if let Some(path) = configured.filter(|path| !is_name(path)) {
        let found = path.exists().then(|| path.to_owned());
        return found.ok_or_else(|| format!("{} does not exist", path.display()));
    }
    let name = configured.unwrap_or(Path::new(vendor.library));
    let searched = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let places = env::split_paths(&searched).chain(PLACES.iter().map(PathBuf::from));
    let found = places.map(|place| place.join(name)).find(|path| path.exists());
    let loaded = || paths.dev.join(vendor.node).exists().then(|| name.to_owned());
    found.or_else(loaded).ok_or_else(|| format!("there is no {} on this host", name.display()))
}

#[cfg(test)]
mod tests {
    use super::{Path, Paths, find};
    use crate::collect::device::vendor;

    #[test]
    fn a_configured_library_that_is_missing_is_named() {
        let nvidia = vendor("nvidia").unwrap();
        let missing = Path::new("/nonexistent/libnvidia-ml.so.1");
        let found = find(nvidia, Some(missing), &Paths::default());
        assert_eq!(found, Err("/nonexistent/libnvidia-ml.so.1 does not exist".to_owned()));
    }

    #[test]
    fn a_configured_name_is_looked_for_where_the_usual_one_is() {
        let nvidia = vendor("nvidia").unwrap();
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::under(root.path());
        let usual = Some(Path::new(nvidia.library));
        assert_eq!(find(nvidia, usual, &paths), find(nvidia, None, &paths), "as the sample has it");
        let other = find(nvidia, Some(Path::new("libnonsense.so.7")), &paths);
        assert_eq!(other, Err("there is no libnonsense.so.7 on this host".to_owned()));
    }

    #[test]
    fn a_loaded_driver_is_reason_enough_to_ask_the_loader() {
        let root = tempfile::tempdir().unwrap();
        let nvidia = vendor("nvidia").unwrap();
        std::fs::create_dir(root.path().join("dev")).unwrap();
        std::fs::write(root.path().join("dev/nvidiactl"), "").unwrap();
        assert!(find(nvidia, None, &Paths::under(root.path())).is_ok());
    }
}

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

/// The library to load: the configured one, else the first found, else the bare name if the kernel
/// driver is loaded, because then the loader may know better.
pub(super) fn find(
    vendor: &Vendor,
    configured: Option<&Path>,
    paths: &Paths,
) -> Result<PathBuf, String> {
    if let Some(path) = configured {
        let found = path.exists().then(|| path.to_owned());
        return found.ok_or_else(|| format!("{} does not exist", path.display()));
    }
    let searched = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let places = env::split_paths(&searched).chain(PLACES.iter().map(PathBuf::from));
    let found = places.map(|place| place.join(vendor.library)).find(|path| path.exists());
    let loaded = || paths.dev.join(vendor.node).exists().then(|| PathBuf::from(vendor.library));
    found.or_else(loaded).ok_or_else(|| format!("there is no {} on this host", vendor.library))
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
    fn a_loaded_driver_is_reason_enough_to_ask_the_loader() {
        let root = tempfile::tempdir().unwrap();
        let nvidia = vendor("nvidia").unwrap();
        std::fs::create_dir(root.path().join("dev")).unwrap();
        std::fs::write(root.path().join("dev/nvidiactl"), "").unwrap();
        assert!(find(nvidia, None, &Paths::under(root.path())).is_ok());
    }
}

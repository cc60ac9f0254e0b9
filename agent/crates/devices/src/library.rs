//! Finds a vendor's library before a child is started, so that a host without the vendor's devices
//! costs a few `stat` calls every retry and no process.

use gpuwho_model::paths::Paths;
use std::env;
use std::path::{Path, PathBuf};

/// A vendor's library.
#[derive(Debug)]
pub struct Library {
    /// Its file name, as the dynamic linker searches for it.
    pub name: &'static str,
    /// Directories of the vendor's operator and of managed clusters, in addition to [`PLACES`].
    pub places: &'static [&'static str],
    /// A device node that exists while the kernel driver is loaded.
    pub node: &'static str,
    /// What reads the devices where the library is not installed.
    pub substitute: Substitute,
}

/// What reads a vendor's devices without its library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Substitute {
    /// Nothing.
    None,
    /// The kernel driver's files; where one of these programs is installed, it too.
    Program(&'static [&'static str]),
}

impl Library {
    /// Whether a path names a substitute and not a library.
    pub fn is_program(&self, path: &Path) -> bool {
        let Substitute::Program(programs) = self.substitute else { return false };
        programs.iter().any(|program| Path::new(program).file_name() == path.file_name())
    }
}

/// Where distributions put libraries.
const PLACES: &[&str] =
    &["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// Finds the library to load: the configured path, else the first file with the configured or
/// default name, else the bare name if the kernel driver is loaded, because the dynamic linker may
/// search more directories. Of a vendor with a substitute, else the program; empty if there is none.
pub(super) fn find(
    library: &Library,
    configured: Option<&Path>,
    paths: &Paths,
) -> Result<PathBuf, String> {
    let is_name = |path: &&Path| path.parent() == Some(Path::new(""));
    if let Some(path) = configured.filter(|path| !is_name(path)) {
        let found = path.exists().then(|| path.to_owned());
        return found.ok_or_else(|| format!("{} does not exist", path.display()));
    }
    let name = configured.unwrap_or(Path::new(library.name));
    let searched = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let default = PLACES.iter().chain(library.places).map(PathBuf::from);
    let places = env::split_paths(&searched).chain(default);
    let found = places.map(|place| place.join(name)).find(|path| path.exists());
    if let (Substitute::Program(programs), None) = (library.substitute, &found) {
        let programs = programs.iter().map(PathBuf::from);
        return Ok(programs.into_iter().find(|path| path.exists()).unwrap_or_default());
    }
    let loaded = || paths.dev.join(library.node).exists().then(|| name.to_owned());
    found.or_else(loaded).ok_or_else(|| format!("{} missing", name.display()))
}

#[cfg(test)]
mod tests {
    use super::{Library, Path, PathBuf, Paths, Substitute, find};

    const LIBRARY: Library = Library {
        name: "libvendor.so.1",
        places: &[],
        node: "vendorctl",
        substitute: Substitute::None,
    };

    #[test]
    fn without_a_library_a_program_or_the_files_are_read() {
        let paths = Paths::default();
        let with = |programs| {
            let library = Library { substitute: Substitute::Program(programs), ..LIBRARY };
            (find(&library, None, &paths), library.is_program(Path::new("/opt/x/sh")))
        };
        assert_eq!(with(&["/nonexistent/sh", "/bin/sh"]), (Ok(PathBuf::from("/bin/sh")), true));
        assert_eq!(with(&["/nonexistent/tool"]), (Ok(PathBuf::new()), false));
    }

    #[test]
    fn a_configured_library_that_is_missing_is_named() {
        let missing = Path::new("/nonexistent/libvendor.so.1");
        let found = find(&LIBRARY, Some(missing), &Paths::default());
        assert_eq!(found, Err("/nonexistent/libvendor.so.1 does not exist".to_owned()));
    }

    #[test]
    fn a_configured_name_is_searched_in_the_default_directories() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::under(root.path());
        let default = Some(Path::new(LIBRARY.name));
        assert_eq!(
            find(&LIBRARY, default, &paths),
            find(&LIBRARY, None, &paths),
            "as in the sample"
        );
        let other = find(&LIBRARY, Some(Path::new("libnonsense.so.7")), &paths);
        assert_eq!(other, Err("libnonsense.so.7 missing".to_owned()));
    }

    #[test]
    fn with_a_loaded_driver_the_loader_searches() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("dev")).unwrap();
        std::fs::write(root.path().join("dev/vendorctl"), "").unwrap();
        assert!(find(&LIBRARY, None, &Paths::under(root.path())).is_ok());
    }
}

//! Folders that become archives: the same files give the same bytes, whoever makes them and when.

use crate::shell;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// A folder whose content becomes an archive.
pub struct Stage {
    folder: PathBuf,
}

impl Stage {
    /// An empty one.
    pub fn new(folder: &Path) -> Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
        }
        make_folder(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Copies a file, or what a link leads to.
    pub fn copy(&self, from: &Path, to: &str, mode: u32) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
        self.write(&bytes, to, mode)
    }

    /// Writes a file.
    pub fn write(&self, bytes: &[u8], to: &str, mode: u32) -> Result<()> {
        let path = self.place(to)?;
        fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            .with_context(|| format!("setting the mode of {}", path.display()))
    }

    /// Makes a symbolic link.
    pub fn link(&self, target: &str, to: &str) -> Result<()> {
        let path = self.place(to)?;
        symlink(target, &path).with_context(|| format!("linking {}", path.display()))
    }

    /// Where it goes; folders above are made.
    fn place(&self, to: &str) -> Result<PathBuf> {
        let path = self.folder.join(to.trim_start_matches('/'));
        let mut above = self.folder.clone();
        let parent = path.parent().context("a file without a folder")?;
        for part in parent.strip_prefix(&self.folder).context("a path that leads out")? {
            above.push(part);
            if !above.exists() {
                make_folder(&above)?;
            }
        }
        Ok(path)
    }

    /// An archive of entries of the folder, all of them root's and of one time.
    pub fn tar(&self, to: &Path, entries: &[&str], epoch: u64) -> Result<()> {
        let fixed = ["--format=gnu", "--sort=name", "--numeric-owner", "--owner=0", "--group=0"];
        let mut tar = shell::program("tar", fixed);
        tar.arg(format!("--mtime=@{epoch}")).arg("--directory").arg(&self.folder);
        tar.arg("--create").arg("--file").arg(to).arg("--").args(entries);
        shell::run(&mut tar)
    }
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
    // Whatever this user's mask is.
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("setting the mode of {}", path.display()))
}

/// Compresses a file, without its name and time, to `NAME.gz`, which replaces it.
pub fn compress(path: &Path) -> Result<()> {
    let options = ["--no-name", "--best", "--force"];
    shell::run(shell::program("gzip", options).arg(path))
}

/// SHA-256 of a file in hexadecimal digits.
pub fn checksum(path: &Path) -> Result<String> {
    let line = shell::capture(shell::program("sha256sum", ["--"]).arg(path))?;
    match line.split_whitespace().next() {
        // It begins with a backslash where the name has odd characters.
        Some(digits) => Ok(digits.trim_start_matches('\\').to_owned()),
        None => bail!("sha256sum wrote nothing about {}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Stage, checksum, compress};
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::time::{Duration, UNIX_EPOCH};

    fn archive(folder: &Path, names: &[&str]) -> String {
        let stage = Stage::new(&folder.join("stage")).unwrap();
        for name in names {
            stage.write(b"text", name, 0o644).unwrap();
        }
        stage.link("b", "a/link").unwrap();
        let first = fs::File::open(stage.folder().join(names[0])).unwrap();
        first.set_modified(UNIX_EPOCH + Duration::from_secs(names.len() as u64)).unwrap();
        let tar = folder.join("archive.tar");
        stage.tar(&tar, &["."], 1_700_000_000).unwrap();
        compress(&tar).unwrap();
        checksum(&folder.join("archive.tar.gz")).unwrap()
    }

    #[test]
    fn the_order_and_the_time_in_which_files_are_made_leave_no_trace() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = archive(one.path(), &["a/b", "a/c", "d"]);
        let late = other.path().join("stage/a");
        fs::create_dir_all(&late).unwrap();
        fs::write(late.join("left"), "over").unwrap();
        assert_eq!(first, archive(other.path(), &["d", "a/c", "a/b"]));
        assert_ne!(first, archive(other.path(), &["d", "a/c"]));
    }

    #[test]
    fn modes_are_those_asked_for_and_nothing_leads_out() {
        let folder = tempfile::tempdir().unwrap();
        let stage = Stage::new(&folder.path().join("stage")).unwrap();
        stage.write(b"", "/usr/bin/x", 0o755).unwrap();
        let mode = |path: &str| {
            let path = stage.folder().join(path);
            fs::metadata(path).unwrap().permissions().mode() & 0o7777
        };
        assert_eq!((mode("usr"), mode("usr/bin/x")), (0o755, 0o755));
    }
}

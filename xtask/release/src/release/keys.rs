//! The keys that a release is signed with: they come from the environment and are nowhere on a disk longer than
//! the task runs.

use anyhow::{Context as _, Result, bail};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use xtask::shell;

/// The public OpenPGP key's file.
pub(super) const PUBLIC: &str = "gpuwho.asc";
/// The variable with the secret key, in ASCII armour and without a passphrase.
pub(super) const GPG_KEY: &str = "GPG_PRIVATE_KEY";
/// cosign's own variables.
pub(super) const COSIGN_KEY: &str = "COSIGN_PRIVATE_KEY";
pub(super) const COSIGN_PASSWORD: &str = "COSIGN_PASSWORD";

/// What programs have in their environment besides this one's: nothing but in a trial.
#[derive(Default)]
pub(super) struct Surroundings(pub(super) Vec<(&'static str, OsString)>);

impl Surroundings {
    /// A program in them.
    pub(super) fn program<A: AsRef<OsStr>>(
        &self,
        name: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = shell::program(name, args);
        command.envs(self.0.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Fails where a key is missing.
    fn require(&self, name: &str, what: &str) -> Result<()> {
        let mine = self.0.iter().find(|(other, _)| *other == name).map(|(_, value)| value.clone());
        match mine.or_else(|| env::var_os(name)).filter(|value| !value.is_empty()) {
            Some(_) => Ok(()),
            None => bail!("{name} is not set: put {what} into it"),
        }
    }
}

pub(super) fn require_gpg(surroundings: &Surroundings) -> Result<()> {
    surroundings.require(GPG_KEY, "what `gpg --armor --export-secret-keys KEY` writes")
}

pub(super) fn require_cosign(surroundings: &Surroundings) -> Result<()> {
    surroundings.require(COSIGN_KEY, "what `cosign generate-key-pair` writes to cosign.key")
}

/// GnuPG with one secret key, in a folder of its own.
pub(super) struct Gpg {
    home: TempDir,
    fingerprint: String,
}

impl Gpg {
    /// With the key that the environment has.
    pub(super) fn new(surroundings: &Surroundings) -> Result<Self> {
        require_gpg(surroundings)?;
        let home = private_folder()?;
        let mut gpg = Self { home, fingerprint: String::new() };
        // The shell's own printf: a key is no argument, which every user of the machine could read.
        let import = format!("printf '%s\\n' \"${GPG_KEY}\" | gpg --batch --quiet --import");
        let mut import = surroundings.program("sh", ["-c", &import]);
        shell::run(import.env("GNUPGHOME", gpg.home()))
            .with_context(|| format!("reading the key in {GPG_KEY}"))?;
        let list = ["--with-colons", "--list-secret-keys"];
        let keys = shell::capture(gpg.command().args(list))?;
        gpg.fingerprint = only_fingerprint(&keys)
            .with_context(|| format!("{GPG_KEY} has not exactly one secret key"))?;
        Ok(gpg)
    }

    pub(super) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(super) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn command(&self) -> Command {
        let mut command = shell::program("gpg", ["--batch", "--yes", "--quiet", "--homedir"]);
        command.arg(self.home());
        if !self.fingerprint.is_empty() {
            command.args(["--local-user", &self.fingerprint]);
        }
        command
    }

    /// A signature beside the file.
    pub(super) fn detached(&self, file: &Path, to: &Path) -> Result<()> {
        let sign = ["--armor", "--detach-sign", "--output"];
        shell::run(self.command().args(sign).arg(to).arg(file))
    }

    /// The text with a signature around it.
    pub(super) fn around(&self, file: &Path, to: &Path) -> Result<()> {
        shell::run(self.command().args(["--clear-sign", "--output"]).arg(to).arg(file))
    }

    /// The public key.
    pub(super) fn export(&self, to: &Path) -> Result<()> {
        let export = ["--armor", "--export", &self.fingerprint];
        shell::run(self.command().arg("--output").arg(to).args(export))
    }
}

/// A folder for a key: nobody else's to read, and short, as the path of a socket in it must fit into 108 bytes.
pub(super) fn private_folder() -> Result<TempDir> {
    let mode = fs::Permissions::from_mode(0o700);
    let made = tempfile::Builder::new().permissions(mode).tempdir();
    made.context("making a folder for a key")
}

impl Drop for Gpg {
    fn drop(&mut self) {
        // The agent that gpg started knows the key.
        let mut kill = shell::program("gpgconf", ["--homedir"]);
        shell::succeeds(kill.arg(self.home()).args(["--kill", "all"]));
    }
}

/// The fingerprint in what gpg lists, if there is one primary key alone.
fn only_fingerprint(listed: &str) -> Option<String> {
    let mut lines = listed.lines();
    let mut found = None;
    while let Some(line) = lines.next() {
        if line.starts_with("sec:") {
            let next = lines.next()?.strip_prefix("fpr:")?;
            let fingerprint = next.trim_matches(':').to_owned();
            if found.replace(fingerprint).is_some() {
                return None;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Surroundings, only_fingerprint, private_folder};
    use std::os::unix::fs::PermissionsExt as _;

    const ONE: &str = "sec:u:255:22:A:1:::u:::scESC:::+::ed25519:::0:\nfpr:::::::::AAFF:\ngrp:::::::::1:\n\
                       uid:u::::1::2::x::::::::::0:\nssb:u:255:18:B:1::::::e:::+::cv25519::\nfpr:::::::::BB:\n";

    #[test]
    fn the_fingerprint_is_the_primary_keys_and_there_is_one_key() {
        assert_eq!(only_fingerprint(ONE).as_deref(), Some("AAFF"));
        assert_eq!(only_fingerprint(&ONE.repeat(2)), None);
        assert_eq!(only_fingerprint(""), None);
    }

    #[test]
    fn a_keys_folder_is_nobody_elses_and_goes() {
        let folder = private_folder().unwrap();
        let path = folder.path().to_owned();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_key_that_is_missing_or_empty_is_named() {
        let empty = Surroundings(vec![("GPUWHO_NO_SUCH_KEY", "".into())]);
        for surroundings in [empty, Surroundings::default()] {
            let error = surroundings.require("GPUWHO_NO_SUCH_KEY", "a key").unwrap_err();
            assert_eq!(error.to_string(), "GPUWHO_NO_SUCH_KEY is not set: put a key into it");
        }
        let set = Surroundings(vec![("GPUWHO_NO_SUCH_KEY", "x".into())]);
        assert!(set.require("GPUWHO_NO_SUCH_KEY", "a key").is_ok());
    }
}

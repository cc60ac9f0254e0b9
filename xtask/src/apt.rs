//! Debian packages of other releases, looked up and unpacked without installing them.
//!
//! apt is used with lists, cache and sources of its own, so the machine's package state stays as it
//! is. The archive's address is the one that the machine itself is configured with.

use crate::shell;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Signs all of Debian's suites; part of every Debian.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// One of Debian's two archives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archive {
    /// The distribution itself.
    Main,
    /// Its security updates.
    Security,
}

/// An apt that knows some suites.
#[derive(Debug)]
pub struct Apt {
    state: PathBuf,
    /// As Debian calls the processor; none for this machine's own.
    architecture: Option<&'static str>,
}

impl Apt {
    /// One whose state is in a folder, for this machine's processor.
    pub(crate) fn at(state: &Path) -> Self {
        Self { state: state.to_owned(), architecture: None }
    }

    /// The same for another processor.
    pub fn of(state: &Path, architecture: &'static str) -> Self {
        Self { state: state.to_owned(), architecture: Some(architecture) }
    }

    /// Fetches the suites' package lists.
    pub fn fetch(&self, suites: &[(Archive, &str)]) -> Result<()> {
        let state = &self.state;
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(state.join(folder)).context("making apt's folders")?;
        }
        let known = shell::capture(&mut shell::program(
            "apt-get",
            ["indextargets", "--format", "$(REPO_URI) $(ORIGIN)", "Created-By: Packages"],
        ))?;
        let sources =
            sources(&known, suites).context("this machine's apt knows no Debian archive")?;
        fs::write(state.join("sources.list"), sources).context("writing apt's sources")?;
        // A suite that has been moved away costs its own packages only: look at what did arrive.
        if let Err(error) =
            shell::run(shell::program("apt-get", self.options()).args(["-q", "update"]))
        {
            eprintln!("warning: {error:#}");
        }
        Ok(())
    }

    /// The names of the packages that match a regular expression.
    pub(crate) fn search(&self, pattern: &str) -> Result<Vec<String>> {
        let search = ["search", "--names-only", pattern];
        let found = shell::capture(shell::program("apt-cache", self.options()).args(search))?;
        let names = found.lines().filter_map(|line| line.split_whitespace().next());
        Ok(names.map(str::to_owned).collect())
    }

    /// The newest version of a package that the suites have, and its SHA-256.
    pub fn newest(&self, package: &str) -> Result<[String; 2]> {
        let show = ["show", "--no-all-versions", package];
        let text = shell::capture(shell::program("apt-cache", self.options()).args(show))?;
        let field = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            found.map(str::to_owned).with_context(|| format!("{package} has no {name}"))
        };
        Ok([field("Version")?, field("SHA256")?])
    }

    /// Downloads a package and unpacks it into a folder.
    pub fn unpack(&self, package: &str, into: &Path) -> Result<()> {
        let mut command = shell::program("apt-get", self.options());
        shell::run(command.args(["-q", "download", package]).current_dir(into))?;
        let entries = fs::read_dir(into).with_context(|| format!("reading {}", into.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                shell::run(shell::program("dpkg-deb", ["-x"]).arg(&path).arg(into))?;
            }
        }
        Ok(())
    }

    /// Make apt leave the machine's own state alone.
    fn options(&self) -> Vec<String> {
        let path = |name: &str| self.state.join(name).display().to_string();
        let settings = [
            format!("Dir::Etc::SourceList={}", path("sources.list")),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={}", path("lists")),
            format!("Dir::Cache={}", path("cache")),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
            // The cache is in a home folder that apt's own user may not enter.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let processor = self.architecture.into_iter().flat_map(|name| {
            ["APT::Architecture", "APT::Architectures"].map(|setting| format!("{setting}={name}"))
        });
        settings
            .into_iter()
            .chain(processor)
            .flat_map(|setting| ["-o".to_owned(), setting])
            .collect()
    }
}

/// A sources list of the suites, from lines `ADDRESS ORIGIN` of the machine's configuration.
fn sources(known: &str, suites: &[(Archive, &str)]) -> Option<String> {
    let addresses: Vec<&str> = known
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(_, origin)| *origin == "Debian")
        .map(|(address, _)| address)
        .collect();
    let is_security = |address: &&&str| address.contains("-security");
    let main = addresses.iter().find(|address| !is_security(address))?;
    let security = addresses.iter().find(is_security).unwrap_or(main);
    let line = |(archive, suite): &(Archive, &str)| {
        let address = if *archive == Archive::Main { main } else { security };
        format!("deb [signed-by={KEYRING}] {address} {suite} main\n")
    };
    Some(suites.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::{Archive, sources};

    const SUITES: &[(Archive, &str)] =
        &[(Archive::Main, "bullseye"), (Archive::Security, "bookworm-security")];

    #[test]
    fn the_archive_is_the_one_the_machine_uses() {
        let known = "http://mirror.example/debian/ Debian\nhttp://mirror.example/debian-security/ Debian\n\
                     http://other.example/ Nodesource\n";
        let sources = sources(known, SUITES).unwrap();
        assert!(sources.contains("http://mirror.example/debian/ bullseye main"), "{sources}");
        let security = "http://mirror.example/debian-security/ bookworm-security main";
        assert!(sources.contains(security), "{sources}");
        assert!(!sources.contains("other.example"), "{sources}");
    }

    #[test]
    fn a_machine_without_debian_archives_has_no_sources() {
        assert_eq!(sources("http://other.example/ Ubuntu\n", SUITES), None);
    }
}

//! A Debian that has apt and dnf, in namespaces of its own for mounts and users: installs what was published.

use super::super::feeds::rpm_index;
use super::super::keys::{Gpg, PUBLIC};
use super::others::{self, EARLIER};
use super::{copy_of, flip, must_fail, said};
use crate::systemd::archive;
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use xtask::archive::checksum;
use xtask::{place, shell};

/// Its release, and what it has besides the usual.
const SUITE: &str = "bookworm";
const PACKAGES: &str = "dnf,gnupg,init-system-helpers,rpm";

/// Runs a script in the folder, with this machine's devices and processes of its own.
const INSIDE: &str = r#"mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" sh -euc "$1""#;

/// The Debian in a folder.
pub(super) struct Host<'a> {
    root: PathBuf,
    work: &'a Path,
    /// Where the feeds are: `127.0.0.1:PORT`.
    web: &'a str,
}

impl<'a> Host<'a> {
    pub(super) fn new(work: &'a Path, web: &'a str) -> Result<Self> {
        let root = work.join("root");
        fs::create_dir_all(&root).context("making the host's folder")?;
        let kept = place::cache("release")?.join(format!("{SUITE}.tar"));
        let tar = archive(kept, SUITE, PACKAGES, None)?;
        let mut unpack =
            shell::program("tar", ["--extract", "--no-same-owner", "--exclude=./dev/*"]);
        shell::run(unpack.arg("--file").arg(tar).arg("--directory").arg(&root))?;
        // Its only feed is ours.
        fs::write(root.join("etc/apt/sources.list"), "").context("emptying apt's sources")?;
        // No other user is in its namespace.
        fs::write(root.join("etc/apt/apt.conf.d/root"), "APT::Sandbox::User \"root\";\n")
            .context("writing apt's settings")?;
        Ok(Self { root, work, web })
    }

    fn run(&self, script: &str) -> Result<String> {
        eprintln!("+ {script}");
        let fixed = ["--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"];
        let mut command = shell::program("unshare", fixed);
        let out = shell::capture(
            command
                .arg(INSIDE)
                .arg(&self.root)
                .arg(script)
                .env_clear()
                .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        )?;
        eprint!("{out}");
        Ok(out)
    }

    /// Names a feed to apt.
    fn sources(&self, path: &str, feed: &Path) -> Result<()> {
        let key = self.root.join("usr/share/keyrings/gpuwho.asc");
        fs::copy(feed.join(PUBLIC), key).context("copying the key")?;
        let line = format!(
            "deb [signed-by=/usr/share/keyrings/gpuwho.asc] http://{}{path}/apt stable main\n",
            self.web
        );
        fs::write(self.root.join("etc/apt/sources.list.d/gpuwho.list"), line)
            .context("writing apt's source")
    }

    /// Installs for this processor, and downloads for the other.
    pub(super) fn apt(&self, feed: &Path) -> Result<()> {
        said("apt installs from the feed");
        self.sources("", feed)?;
        // The newest is installed, and the earlier one can be had.
        self.run("dpkg --add-architecture amd64; dpkg --add-architecture arm64; apt-get update")?;
        self.run(&format!("cd /tmp && apt-get download gpuwho={EARLIER}-1"))?;
        let version = self.run("apt-get install --yes gpuwho >&2; gpuwho --version")?;
        let wanted = format!("gpuwho {}", env!("CARGO_PKG_VERSION"));
        ensure!(version.trim() == wanted, "installed {version}");
        for processor in ["amd64", "arm64"] {
            self.run(&format!("cd /tmp && apt-get download gpuwho:{processor}"))?;
            let path = self.root.join("tmp").join(deb(processor));
            ensure!(
                checksum(&path)? == checksum(&feed.join("apt/pool").join(deb(processor)))?,
                "another {}",
                path.display()
            );
        }
        self.run("apt-get purge --yes gpuwho")?;
        Ok(())
    }

    /// Feeds with another package, with another index, and signed by somebody else.
    pub(super) fn forged_apt(&self, feed: &Path, other: &Gpg) -> Result<()> {
        let update = "rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb; \
                      apt-get -o APT::Update::Error-Mode=any update";
        let package = copy_of(feed, "forged-package")?;
        flip(&package.join("apt/pool").join(deb("amd64")))?;
        flip(&package.join("apt/pool").join(deb("arm64")))?;
        self.sources("/forged-package", feed)?;
        self.run(update)?;
        for processor in ["amd64", "arm64"] {
            let get = format!("cd /tmp && apt-get download gpuwho:{processor}");
            fs::remove_file(self.root.join("tmp").join(deb(processor)))
                .context("removing a package")?;
            must_fail("a package with another byte, by apt", "Hash Sum mismatch", self.run(&get))?;
        }

        let index = copy_of(feed, "forged-index")?;
        let binary = index.join("apt/dists/stable/main/binary-amd64");
        for name in ["Packages", "Packages.gz"] {
            flip(&binary.join(name))?;
        }
        self.sources("/forged-index", feed)?;
        must_fail("another index, by apt", "Hash Sum mismatch", self.run(update))?;

        let signed = copy_of(feed, "forged-signature")?;
        let dist = signed.join("apt/dists/stable");
        other.detached(&dist.join("Release"), &dist.join("Release.gpg"))?;
        other.around(&dist.join("Release"), &dist.join("InRelease"))?;
        self.sources("/forged-signature", feed)?;
        must_fail("another key's signature, by apt", "NO_PUBKEY", self.run(update))?;
        // It was the signature and nothing else.
        self.sources("", feed)?;
        self.run(update).map(drop)
    }

    /// Names a feed to dnf, in the words of the README, and installs the package below a root of its own.
    fn install(&self, path: &str, processor: &str) -> Result<String> {
        let web = format!("http://{}", self.web);
        let text = format!(
            "[gpuwho]\nname=gpuwho\nbaseurl={web}{path}/rpm/$basearch\ngpgkey={web}/{PUBLIC}\n\
             gpgcheck=1\nrepo_gpgcheck=1\n[base]\nname=base\nbaseurl={web}/base\ngpgcheck=0\n"
        );
        let repos = self.root.join("etc/yum.repos.d");
        fs::create_dir_all(&repos).context("making dnf's folder")?;
        fs::write(repos.join("gpuwho.repo"), text).context("writing dnf's feed")?;
        // No shell is there to run the package's scripts with.
        self.run(&format!(
            "rm -rf /other /var/cache/dnf; mkdir /other; dnf --installroot=/other --releasever=1 \
             --forcearch={processor} --setopt=reposdir=/etc/yum.repos.d --setopt=tsflags=noscripts \
             --assumeyes install gpuwho >&2; rpm --root=/other --query gpuwho",
        ))
    }

    /// Installs for each processor, and not what is forged.
    pub(super) fn dnf(&self, feed: &Path, mine: &Gpg, other: &Gpg) -> Result<()> {
        said("dnf installs from the feed");
        others::base(&feed.join("base"), self.work)?;
        for processor in ["aarch64", "x86_64"] {
            let installed = self.install("", processor)?;
            let wanted = format!("gpuwho-{}-1.{processor}", env!("CARGO_PKG_VERSION"));
            ensure!(installed.trim() == wanted, "dnf installed {installed}");
        }

        let package = copy_of(feed, "forged-rpm")?;
        flip(&package.join("rpm/x86_64").join(rpm()))?;
        must_fail(
            "a package with another byte, by dnf",
            "checksum doesn't match",
            self.install("/forged-rpm", "x86_64"),
        )?;

        let signed = copy_of(feed, "forged-repodata")?;
        rpm_index(&signed.join("rpm/x86_64"), other)?;
        must_fail(
            "another key's index, by dnf",
            "repomd.xml GPG signature verification error",
            self.install("/forged-repodata", "x86_64"),
        )?;

        let unsigned = copy_of(feed, "unsigned-rpm")?;
        let folder = unsigned.join("rpm/x86_64");
        shell::run(shell::program("rpmsign", ["--delsign"]).arg(folder.join(rpm())))?;
        rpm_index(&folder, mine)?;
        must_fail(
            "a package without a signature, by dnf",
            "is not signed",
            self.install("/unsigned-rpm", "x86_64"),
        )?;
        self.install("", "x86_64").map(drop)
    }
}

fn deb(processor: &str) -> String {
    format!("gpuwho_{}-1_{processor}.deb", env!("CARGO_PKG_VERSION"))
}

fn rpm() -> String {
    format!("gpuwho-{}-1.x86_64.rpm", env!("CARGO_PKG_VERSION"))
}

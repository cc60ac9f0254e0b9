//! `cargo xtask release --try`: publishes on this machine, to a folder behind a web server and to a real registry
//! with a password, with keys of the moment; then installs from there as users do, and sees to it that nothing
//! comes of what was tampered with.

mod binstall;
mod host;
mod images;
mod others;
mod servers;

use super::keys::{COSIGN_KEY, COSIGN_PASSWORD, GPG_KEY, PUBLIC, Surroundings, private_folder};
use super::{Files, publish, registry};
use anyhow::{Context as _, Result, ensure};
use host::Host;
use images::Images;
use servers::{Server, USER, registry as start_registry, web};
use std::fs;
use std::path::{Path, PathBuf};
use xtask::archive::Stage;
use xtask::setup::dist as tools;
use xtask::setup::{self, Want};
use xtask::{place, shell};

/// What is said where something else is published.
const TAKEN: &str = "is published and is another";

/// `cargo xtask release --try`.
pub(super) fn trial(files: &Files) -> Result<()> {
    setup::ensure(&["guest"], Want::Must)?;
    let stage = Stage::new(&place::target("release-try"))?;
    let work = stage.folder();
    // Signatures of the moment do not belong beside what will be published.
    let dist = work.join("dist");
    shell::run(shell::program("cp", ["-a"]).arg(&files.folder).arg(&dist))?;
    let files = &Files::of(&dist)?;
    let feed = work.join("feed");
    fs::create_dir_all(&feed).context("making the feed's folder")?;
    let web = web(&feed)?;
    let registry = start_registry(work)?;
    let keys = Keys::new(work, &registry)?;
    let mine = keys.surroundings("mine")?;
    let name = format!("{}/gpuwho", registry.address);

    others::earlier(&feed, work)?;
    said(
        "packages, chart and image are published beside an earlier release, and again, which changes nothing",
    );
    for _ in 0..2 {
        publish(files, &feed, &mine)?;
        registry::push(files, &name, &mine)?;
    }
    taken(files, &feed, work, &mine, &name)?;
    let result = registry::push(files, &name, &keys.stranger()?);
    must_fail("a push without the password", "authentication required", result)?;

    sums(files, work)?;
    Images { files, registry: &name, keys: &keys, work }.check(&web.address)?;
    binstall::binstall(files, work)?;
    let host = Host::new(work, &web.address)?;
    host.apt(&feed)?;
    let other = keys.surroundings("other")?;
    host.dnf(&feed, &super::Gpg::new(&mine)?, &super::Gpg::new(&other)?)?;
    host.forged_apt(&feed, &super::Gpg::new(&other)?)?;
    println!(
        "tried: apt, dnf, helm, skopeo, cosign and cargo-binstall take what was published, and nothing else"
    );
    Ok(())
}

/// Says what is tried.
fn said(what: &str) {
    eprintln!("== {what}");
}

/// The opposite of a check: it fails, and says why in these words.
fn must_fail<T>(what: &str, why: &str, result: Result<T>) -> Result<()> {
    let Err(error) = result else { anyhow::bail!("{what} was taken") };
    let error = format!("{error:#}");
    ensure!(error.contains(why), "{what} was refused, but not as {why:?}: {error}");
    said(&format!("refused, as it must be: {what} ({why})"));
    Ok(())
}

/// Nothing else gets a name or a tag that is published.
fn taken(files: &Files, feed: &Path, work: &Path, mine: &Surroundings, name: &str) -> Result<()> {
    let other = Files { debs: vec![changed(&files.debs[0], work)?], ..files.clone() };
    must_fail("another package under a published name", TAKEN, publish(&other, feed, mine))?;
    let rpm = work.join(files.rpms[0].file_name().context("a package without a name")?);
    let earlier = format!("rpm/x86_64/gpuwho-{}-1.x86_64.rpm", others::EARLIER);
    fs::copy(feed.join(earlier), &rpm).context("copying a package")?;
    let other = Files { rpms: vec![rpm], ..files.clone() };
    must_fail("another package under a published name, rpm", TAKEN, publish(&other, feed, mine))?;
    let other = Files { image: images::changed(&files.image, work)?, ..files.clone() };
    must_fail("another image under a tag", TAKEN, registry::push(&other, name, mine))?;
    let other = Files { chart: changed(&files.chart, work)?, ..files.clone() };
    must_fail("another chart under a tag", TAKEN, registry::push(&other, name, mine))
}

/// The file with a byte more.
fn changed(file: &Path, work: &Path) -> Result<PathBuf> {
    let to = work.join(file.file_name().context("a file without a name")?);
    let mut bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    bytes.push(b'\n');
    fs::write(&to, bytes).with_context(|| format!("writing {}", to.display()))?;
    Ok(to)
}

/// The checksums' signature is the key's, and no other text's.
fn sums(files: &Files, work: &Path) -> Result<()> {
    said("SHA256SUMS has a signature");
    let keyring = work.join("keyring.gpg");
    let mut dearmor = shell::program("gpg", ["--batch", "--yes", "--dearmor", "--output"]);
    shell::run(dearmor.arg(&keyring).arg(files.folder.join(PUBLIC)))?;
    let verify = |file: &Path| {
        let mut gpgv = shell::program("gpgv", ["--keyring"]);
        gpgv.arg(&keyring).arg(files.folder.join("SHA256SUMS.asc")).arg(file);
        shell::capture(&mut gpgv)
    };
    verify(&files.folder.join(super::SUMS))?;
    let other = work.join("sums");
    fs::write(&other, "0  gpuwho\n").context("writing other sums")?;
    must_fail("other checksums", "BAD signature", verify(&other))
}

/// Keys of the moment, and the programs' own folders, so that this machine's stay as they are.
struct Keys<'a> {
    work: &'a Path,
    login: PathBuf,
}

impl<'a> Keys<'a> {
    fn new(work: &'a Path, registry: &Server) -> Result<Self> {
        let login = work.join("login");
        for folder in ["login", "stranger"] {
            fs::create_dir_all(work.join(folder)).context("making a folder")?;
        }
        let text = serde_json::json!({ "auths": { &registry.address: { "auth": USER } } });
        // Where `docker login` puts it.
        fs::write(login.join("config.json"), text.to_string()).context("writing the login")?;
        fs::write(work.join("stranger/config.json"), "{}").context("writing no login")?;
        Ok(Self { work, login })
    }

    /// With the login and keys of this name, made where there are none.
    fn surroundings(&self, name: &str) -> Result<Surroundings> {
        let folder = self.work.join(name);
        if !folder.exists() {
            fs::create_dir_all(&folder).context("making a folder")?;
            let cosign = tools::build_go_program(tools::COSIGN)?;
            let mut pair = shell::program(cosign, ["generate-key-pair"]);
            shell::run(pair.current_dir(&folder).env(COSIGN_PASSWORD, "password"))?;
            fs::write(folder.join("gpg.asc"), openpgp(name)?).context("writing a key")?;
        }
        let read = |file: &str| {
            fs::read_to_string(folder.join(file)).with_context(|| format!("reading {file}"))
        };
        let mut all = self.machine(&self.login).0;
        all.extend([
            (GPG_KEY, read("gpg.asc")?.into()),
            (COSIGN_KEY, read("cosign.key")?.into()),
            (COSIGN_PASSWORD, "password".into()),
        ]);
        Ok(Surroundings(all))
    }

    /// The right keys without the login.
    fn stranger(&self) -> Result<Surroundings> {
        let mut all = self.surroundings("mine")?.0;
        all.extend(self.machine(&self.work.join("stranger")).0);
        Ok(Surroundings(all))
    }

    /// Where programs find their configuration.
    fn machine(&self, login: &Path) -> Surroundings {
        let helm = self.work.join("helm");
        Surroundings(vec![
            ("DOCKER_CONFIG", login.into()),
            ("REGISTRY_AUTH_FILE", login.join("config.json").into()),
            ("HELM_CACHE_HOME", helm.join("cache").into()),
            ("HELM_CONFIG_HOME", helm.join("config").into()),
            ("HELM_DATA_HOME", helm.join("data").into()),
        ])
    }
}

/// A new secret key, as a maintainer exports it.
fn openpgp(name: &str) -> Result<String> {
    let home = private_folder()?;
    let gpg = |args: &[&str]| {
        let mut command = shell::program("gpg", ["--batch", "--quiet", "--passphrase", ""]);
        shell::capture(command.args(args).env("GNUPGHOME", home.path()))
    };
    // What RHEL 8's and Debian 11's programs know.
    gpg(&["--quick-generate-key", &format!("{name} <{name}@localhost>"), "rsa3072", "sign", "1d"])?;
    let key = gpg(&["--armor", "--export-secret-keys"])?;
    shell::succeeds(shell::program("gpgconf", ["--kill", "all"]).env("GNUPGHOME", home.path()));
    ensure!(key.contains("PRIVATE KEY BLOCK"), "gpg exported no key");
    Ok(key)
}

/// Copies a feed, to be tampered with.
fn copy_of(feed: &Path, name: &str) -> Result<PathBuf> {
    let to = feed.join(name);
    fs::create_dir_all(&to).with_context(|| format!("making {}", to.display()))?;
    let mut copy = shell::program("cp", ["-a"]);
    shell::run(copy.args(["apt", "rpm", PUBLIC].map(|part| feed.join(part))).arg(&to))?;
    Ok(to)
}

/// Changes one byte in the middle, so that the size stays.
fn flip(path: &Path) -> Result<()> {
    let mut bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let middle = bytes.len() / 2;
    let byte = bytes.get_mut(middle).context("an empty file")?;
    *byte ^= 1;
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

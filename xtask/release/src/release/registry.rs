//! Image and chart in a registry, signed by cosign. Programs find the registry's password where `docker login`
//! has put it.

use super::Files;
use super::keys::{COSIGN_KEY, Surroundings, require_cosign};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use xtask::archive::checksum;
use xtask::setup::dist as tools;
use xtask::shell;

/// Pushes both, and signs what was pushed by its checksum.
pub(super) fn push(files: &Files, registry: &str, surroundings: &Surroundings) -> Result<()> {
    require_cosign(surroundings)?;
    let registry = Registry {
        name: registry,
        surroundings,
        scratch: tempfile::tempdir().context("a folder")?,
    };
    let signer = Signer::new(&registry)?;
    let image = registry.push_image(&files.image)?;
    signer.sign(&image)?;
    let chart = registry.push_chart(&files.chart)?;
    signer.sign(&chart)?;
    signer.export(&files.folder.join("cosign.pub"))?;
    println!("{image}\n{chart}");
    Ok(())
}

/// Whether the registry is this machine's own, which needs no TLS: cosign decides so too.
pub(super) fn is_local(registry: &str) -> bool {
    let host = registry.split(['/', ':']).next().unwrap_or_default();
    host == "localhost" || host == "127.0.0.1"
}

struct Registry<'a> {
    name: &'a str,
    surroundings: &'a Surroundings,
    scratch: TempDir,
}

impl Registry<'_> {
    /// Gives the name by checksum.
    fn push_image(&self, archive: &Path) -> Result<String> {
        let version = env!("CARGO_PKG_VERSION");
        let from = format!("oci-archive:{}:{version}", archive.display());
        let index = self.manifest(&from)?;
        let to = format!("{}/gpuwho:{version}", self.name);
        if let Some(published) = self.published(&to) {
            ensure!(published == index, taken(&to));
        }
        let mut copy = self.skopeo("copy", "--dest-tls-verify=false");
        copy.args(["--quiet", "--all", "--preserve-digests", &from, &format!("docker://{to}")]);
        shell::capture(&mut copy)?;
        let file = self.scratch.path().join("index.json");
        fs::write(&file, index).context("writing the image's index")?;
        Ok(format!("{}/gpuwho@sha256:{}", self.name, checksum(&file)?))
    }

    /// Gives the name by checksum.
    fn push_chart(&self, chart: &Path) -> Result<String> {
        let to = format!("{}/charts/gpuwho:{}", self.name, env!("CARGO_PKG_VERSION"));
        if let Some(published) = self.published(&to) {
            // Helm writes the file's time into the manifest.
            let manifest: Value = serde_json::from_str(&published).unwrap_or_default();
            let wanted = format!("sha256:{}", checksum(chart)?);
            ensure!(manifest["layers"][0]["digest"] == *wanted, taken(&to));
        }
        let mut push = self.surroundings.program(tools::build_go_program(tools::HELM)?, ["push"]);
        push.arg(chart).arg(format!("oci://{}/charts", self.name));
        if is_local(self.name) {
            push.arg("--plain-http");
        }
        // What Helm has computed, not what the registry says.
        let said = push.output().context("starting helm")?;
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        let digest = said.lines().find_map(|line| line.strip_prefix("Digest: "));
        let digest = digest.with_context(|| format!("helm pushed no chart: {}", said.trim()))?;
        Ok(format!("{}/charts/gpuwho@{digest}", self.name))
    }

    /// What is there, if anything is and may be seen: if not, the push says why.
    fn published(&self, name: &str) -> Option<String> {
        self.manifest(&format!("docker://{name}")).ok()
    }

    fn manifest(&self, image: &str) -> Result<String> {
        shell::capture(self.skopeo("inspect", "--tls-verify=false").args(["--raw", image]))
    }

    fn skopeo(&self, task: &str, plain: &str) -> std::process::Command {
        let plain = is_local(self.name).then_some(plain);
        self.surroundings.program("skopeo", [task].into_iter().chain(plain))
    }
}

fn taken(name: &str) -> String {
    format!("{name} is published and is another: raise the version")
}

/// cosign with the key in its variable.
struct Signer<'a> {
    cosign: std::path::PathBuf,
    /// Names no service of Sigstore: the key alone is trusted, and nothing is sent elsewhere.
    services: std::path::PathBuf,
    surroundings: &'a Surroundings,
}

impl<'a> Signer<'a> {
    fn new(registry: &Registry<'a>) -> Result<Self> {
        let cosign = tools::build_go_program(tools::COSIGN)?;
        let services = registry.scratch.path().join("services.json");
        let create = ["signing-config", "create", "--out"];
        shell::run(shell::program(&cosign, create).arg(&services))?;
        Ok(Self { cosign, services, surroundings: registry.surroundings })
    }

    /// An image of several processors is signed as a whole and each for itself.
    fn sign(&self, name: &str) -> Result<()> {
        let key = format!("env://{COSIGN_KEY}");
        let mut sign = self.surroundings.program(&self.cosign, ["sign", "--yes", "--recursive"]);
        sign.args(["--key", &key, "--signing-config"]).arg(&self.services);
        shell::run(sign.arg(name))
    }

    fn export(&self, to: &Path) -> Result<()> {
        let key = format!("env://{COSIGN_KEY}");
        let export = self.surroundings.program(&self.cosign, ["public-key", "--key", &key]);
        let text = shell::capture(&mut { export })?;
        fs::write(to, text).with_context(|| format!("writing {}", to.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_this_machines_registry_is_spoken_to_without_tls() {
        assert!(
            is_local("127.0.0.1:5000") && is_local("localhost:5000/x") && is_local("localhost")
        );
        for name in ["ghcr.io/localhost", "127.0.0.1.example/x", "localhost.example:5000", ""] {
            assert!(!is_local(name), "{name}");
        }
    }
}

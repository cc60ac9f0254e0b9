//! Image and chart, fetched and checked as users do.

use super::super::Files;
use super::super::registry;
use super::others::EARLIER;
use super::{Keys, must_fail, said};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use xtask::archive::checksum;
use xtask::chart::KUBERNETES;
use xtask::setup::dist as tools;
use xtask::shell;

/// What was pushed, and with which keys.
pub(super) struct Images<'a> {
    pub(super) files: &'a Files,
    pub(super) registry: &'a str,
    pub(super) keys: &'a Keys<'a>,
    pub(super) work: &'a Path,
}

impl Images<'_> {
    pub(super) fn check(&self, web: &str) -> Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        let image = format!("{}/gpuwho", self.registry);
        let index = self.index(&format!("{image}:{version}"))?;
        let manifests = index["manifests"].as_array().context("an image for one processor")?;
        ensure!(manifests.len() == 2, "{} processors", manifests.len());
        for manifest in manifests {
            let digest = manifest["digest"].as_str().context("no checksum")?;
            said(&format!("the image for {} by checksum", manifest["platform"]["architecture"]));
            self.pull(&format!("{image}@{digest}"), manifest)?;
            self.signed(&format!("{image}@{digest}"))?;
        }
        self.signed(&format!("{image}:{version}"))?;
        self.signed(&format!("{}/charts/gpuwho:{version}", self.registry))?;
        self.forged(version)?;
        self.helm(web)
    }

    fn index(&self, name: &str) -> Result<Value> {
        let inspect = ["inspect", "--tls-verify=false", "--raw"];
        let mut command = self.keys.machine(&self.keys.login).program("skopeo", inspect);
        let text = shell::capture(command.arg(format!("docker://{name}")))?;
        serde_json::from_str(&text).context("reading the image's index")
    }

    /// skopeo compares every part with its checksum; the program in it is the release's.
    fn pull(&self, name: &str, manifest: &Value) -> Result<()> {
        let processor = manifest["platform"]["architecture"].as_str().unwrap_or_default();
        let to = self.work.join(format!("pulled-{processor}"));
        let copy = ["copy", "--quiet", "--src-tls-verify=false", "--override-arch", processor];
        let mut command = self.keys.machine(&self.keys.login).program("skopeo", copy);
        command.arg(format!("docker://{name}")).arg(format!("dir:{}", to.display()));
        shell::run(&mut command)?;
        let text = fs::read_to_string(to.join("manifest.json")).context("reading a manifest")?;
        let pulled: Value = serde_json::from_str(&text).context("reading a manifest")?;
        let layer = pulled["layers"][0]["digest"].as_str().context("no layer")?;
        let layer = to.join(layer.trim_start_matches("sha256:"));
        let mut unpack = shell::program("tar", ["--extract", "--gzip", "--file"]);
        unpack.arg(&layer).arg("--directory").arg(&to).arg("./usr/bin/gpuwho");
        shell::run(&mut unpack)?;
        let tarball = self.tarballs()?.into_iter().find(|(name, _)| *name == processor);
        let (_, wanted) = tarball.context("no tarball for a processor")?;
        ensure!(checksum(&to.join("usr/bin/gpuwho"))? == wanted, "{name} has another program");
        Ok(())
    }

    /// The checksum of each processor's program.
    fn tarballs(&self) -> Result<Vec<(&'static str, String)>> {
        let of = |(ours, debian): (&str, &'static str)| {
            let base = format!("gpuwho-{}-linux-{ours}", env!("CARGO_PKG_VERSION"));
            let mut unpack = shell::program("tar", ["--extract", "--gzip", "--file"]);
            unpack.arg(self.files.folder.join(format!("{base}.tar.gz")));
            unpack.arg("--directory").arg(self.work).arg(format!("{base}/gpuwho"));
            shell::run(&mut unpack)?;
            Ok((debian, checksum(&self.work.join(base).join("gpuwho"))?))
        };
        [("x86_64", "amd64"), ("aarch64", "arm64")].into_iter().map(of).collect()
    }

    fn verify(&self, name: &str, key: &Path) -> Result<String> {
        let cosign = tools::build_go_program(tools::COSIGN)?;
        let verify = ["verify", "--insecure-ignore-tlog", "--key"];
        let mut command = self.keys.machine(&self.keys.login).program(cosign, verify);
        shell::capture(command.arg(key).arg(name))
    }

    fn signed(&self, name: &str) -> Result<String> {
        said(&format!("cosign verify {name}"));
        self.verify(name, &self.files.folder.join("cosign.pub"))
    }

    /// The same image and chart under other names, with another's signature and with none.
    fn forged(&self, version: &str) -> Result<()> {
        let folder = self.work.join("forged");
        fs::create_dir_all(&folder).context("making a folder")?;
        let files = Files { folder, ..self.files.clone() };
        let name = format!("{}/forged", self.registry);
        registry::push(&files, &name, &self.keys.surroundings("other")?)?;
        for part in ["gpuwho", "charts/gpuwho"] {
            let result = self.signed(&format!("{name}/{part}:{version}"));
            must_fail("another key's signature", "accepted signatures do not match", result)?;
        }
        let name = format!("{}/unsigned:1", self.registry);
        let archive = format!("oci-archive:{}:{version}", self.files.image.display());
        let copy = ["copy", "--quiet", "--dest-tls-verify=false", "--all", &archive];
        let mut command = self.keys.machine(&self.keys.login).program("skopeo", copy);
        shell::run(command.arg(format!("docker://{name}")))?;
        must_fail("an image without a signature", "no signatures found", self.signed(&name))
    }

    /// From the registry and from the index.
    fn helm(&self, web: &str) -> Result<()> {
        said("Helm has the chart from the registry and from the index");
        let helm = tools::build_go_program(tools::HELM)?;
        let run = |args: &[&str]| {
            let mut command =
                self.keys.machine(&self.keys.login).program(&helm, args.iter().copied());
            shell::capture(command.current_dir(self.work))
        };
        let oci = format!("oci://{}/charts/gpuwho", self.registry);
        let earlier = ["template", "gpuwho", "gpuwho/gpuwho", "--version", EARLIER];
        run(&["repo", "add", "gpuwho", &format!("http://{web}/charts")])?;
        run(&[&earlier[..], &["--kube-version", KUBERNETES]].concat())?;
        let version = env!("CARGO_PKG_VERSION");
        let plain: [&[&str]; 2] = [&[oci.as_str(), "--plain-http"], &["gpuwho/gpuwho"]];
        for (at, source) in plain.into_iter().enumerate() {
            let to = format!("chart-{at}");
            fs::create_dir_all(self.work.join(&to)).context("making a folder")?;
            let fixed = ["--version", version];
            let kubernetes = ["--kube-version", KUBERNETES];
            run(&[&["pull", "--destination", &to], source, &fixed].concat())?;
            let pulled = self.work.join(to).join(format!("gpuwho-{version}.tgz"));
            ensure!(checksum(&pulled)? == checksum(&self.files.chart)?, "another chart");
            let image = format!("image.repository={}/gpuwho", self.registry);
            let set = ["--set", &image];
            let text = run(&[&["template", "gpuwho"], source, &fixed, &kubernetes, &set].concat())?;
            let wanted = format!("image: \"{}/gpuwho:{version}\"", self.registry);
            ensure!(text.contains(&wanted), "rendered without {wanted}:\n{text}");
        }
        Ok(())
    }
}

/// The image for this processor alone, as an archive in the folder.
pub(super) fn changed(image: &Path, folder: &Path) -> Result<PathBuf> {
    let to = folder.join("changed-oci.tar");
    let version = env!("CARGO_PKG_VERSION");
    let mut copy = shell::program("skopeo", ["copy"]);
    copy.arg(format!("oci-archive:{}:{version}", image.display()));
    shell::run(copy.arg(format!("oci-archive:{}:{version}", to.display())))?;
    Ok(to)
}

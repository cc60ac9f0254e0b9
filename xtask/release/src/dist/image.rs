//! The container image as an OCI archive for all processors, made without pulling anything: the
//! program, Debian's C library and C++'s, certificates, no shell.
//!
//! The driver's own library comes from the host: NVIDIA's container runtime mounts it, or a folder of the host is
//! mounted. NVIDIA's loads the C library and nothing else.

use super::Release;
use super::base::{self, PACKAGES, SUITE};
use super::binary::Processor;
use super::contents::{FILES, Kind, PROGRAM};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use xtask::archive::{Stage, checksum, compress};
use xtask::shell;

/// The C library in its parts, the unwinder that it loads when a thread is cancelled, and C++'s, which AMD's
/// and Habana's libraries load.
const LIBRARIES: &[&str] = &[
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
    "libstdc++.so.6",
];
/// Where programs look for certificate authorities.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Most bytes of a processor's layer, compressed: every node of a cluster pulls it.
const MAX_LAYER: u64 = 20 << 20;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// An image being put together.
pub(super) struct Image {
    /// The layout: `oci-layout`, `index.json`, `blobs/sha256/*`.
    layout: Stage,
    manifests: Vec<Value>,
}

impl Image {
    pub(super) fn new(work: &Path) -> Result<Self> {
        Ok(Self { layout: Stage::new(&work.join("layout"))?, manifests: Vec::new() })
    }

    /// Adds a processor's image; gives its entries as `tar` lists them.
    pub(super) fn add(
        &mut self,
        release: &Release,
        processor: &Processor,
        made: &Path,
    ) -> Result<String> {
        let root = root(processor, made)?;
        let tar = made.join("layer.tar");
        root.tar(&tar, &["."], release.epoch)?;
        let list = ["--list", "--verbose", "--numeric-owner", "--file"];
        let listing = shell::capture(shell::program("tar", list).arg(&tar))?;
        self.add_layer(release, processor, &tar, made)?;
        Ok(listing)
    }

    /// Adds the image that has this archive as its only layer.
    fn add_layer(
        &mut self,
        release: &Release,
        processor: &Processor,
        tar: &Path,
        made: &Path,
    ) -> Result<()> {
        let diff = checksum(tar)?;
        compress(tar)?;
        let layer = self.blob(&tar.with_extension("tar.gz"), LAYER)?;
        let size = layer["size"].as_u64().unwrap_or_default();
        ensure!(size <= MAX_LAYER, "the image for {} has {size} bytes", processor.name);
        let config = self.json_blob(&configuration(release, processor, &diff), CONFIG, made)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
        });
        let mut manifest = self.json_blob(&manifest, MANIFEST, made)?;
        manifest["platform"] = json!({ "architecture": processor.debian, "os": "linux" });
        self.manifests.push(manifest);
        Ok(())
    }

    /// Writes the archive.
    pub(super) fn write(mut self, release: &Release, work: &Path, to: &Path) -> Result<()> {
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": self.manifests });
        let mut index = self.json_blob(&index, INDEX, work)?;
        index["annotations"] = json!({
            "io.containerd.image.name": format!("docker.io/library/gpuwho:{}", release.version),
            "org.opencontainers.image.ref.name": release.version,
        });
        let top = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [index] });
        self.layout.write(top.to_string().as_bytes(), "index.json", 0o644)?;
        self.layout.write(b"{\"imageLayoutVersion\":\"1.0.0\"}", "oci-layout", 0o644)?;
        self.layout.tar(to, &["blobs", "index.json", "oci-layout"], release.epoch)
    }

    /// Adds a file by its checksum and gives its descriptor.
    fn blob(&mut self, file: &Path, kind: &str) -> Result<Value> {
        let digest = checksum(file)?;
        self.layout.copy(file, &format!("blobs/sha256/{digest}"), 0o644)?;
        let size = fs::metadata(file).with_context(|| format!("reading {}", file.display()))?.len();
        Ok(json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": size }))
    }

    fn json_blob(&mut self, value: &Value, kind: &str, scratch: &Path) -> Result<Value> {
        let file = scratch.join("blob.json");
        fs::write(&file, value.to_string())
            .with_context(|| format!("writing {}", file.display()))?;
        self.blob(&file, kind)
    }
}

fn configuration(release: &Release, processor: &Processor, diff: &str) -> Value {
    json!({
        "created": release.time(),
        "architecture": processor.debian,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/gpuwho"],
            "Cmd": ["agent"],
            "Env": ["PATH=/usr/bin"],
            "WorkingDir": "/",
            "Labels": {
                "org.opencontainers.image.title": "gpuwho",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{diff}")] },
    })
}

/// The image's root folder.
fn root(processor: &Processor, made: &Path) -> Result<Stage> {
    let debian = base::pinned(processor)?;
    let root = Stage::new(&made.join("root"))?;
    for file in FILES.iter().filter(|file| file.kind == Kind::Everywhere) {
        root.copy(&file.source(made), file.path, file.mode)?;
    }
    copy_libraries(processor, &debian, &root)?;
    root.write(&certificates(&debian)?, CERTIFICATES, 0o644)?;
    root.write(b"root:x:0:0:root:/:/usr/bin/gpuwho\n", "etc/passwd", 0o644)?;
    root.write(b"hosts: files dns\n", "etc/nsswitch.conf", 0o644)?;
    // NVIDIA's container runtime mounts the driver's libraries where the loader looks in a Debian.
    root.write(format!("{SUITE}\n").as_bytes(), "etc/debian_version", 0o644)?;
    for package in PACKAGES {
        describe(&root, &debian, package)?;
    }
    Ok(root)
}

/// The C library of Debian's unpacked packages, where programs look for it.
fn copy_libraries(processor: &Processor, debian: &Path, root: &Stage) -> Result<()> {
    let loader = Path::new(processor.loader).file_name().and_then(OsStr::to_str);
    let loader = loader.context("a loader without a name")?;
    let folder = format!("lib/{}", processor.libraries);
    let find = |name: &str| {
        let places = ["usr", ""].map(|above| debian.join(above).join(&folder).join(name));
        let found = places.into_iter().find(|path| path.exists());
        found.with_context(|| format!("{} has no {name}", debian.display()))
    };
    for name in LIBRARIES {
        root.copy(&find(name)?, &format!("usr/{folder}/{name}"), 0o755)?;
    }
    root.copy(&find(loader)?, &format!("usr{}", processor.loader), 0o755)?;
    for folder in ["lib", "lib64"] {
        if root.folder().join("usr").join(folder).is_dir() {
            root.link(&format!("usr/{folder}"), folder)?;
        }
    }
    Ok(())
}

/// A root folder that has the program and the oldest C library that can be had: glibc 2.31.
pub(super) fn oldest_root(processor: &Processor, made: &Path) -> Result<PathBuf> {
    let root = Stage::new(&made.join("oldest"))?;
    root.copy(&made.join(PROGRAM), "usr/bin/gpuwho", 0o755)?;
    copy_libraries(processor, &base::oldest(processor)?, &root)?;
    Ok(root.folder().to_owned())
}

/// What scanners of images read about a package, and its licence.
fn describe(root: &Stage, debian: &Path, package: &str) -> Result<()> {
    let file = base::deb(debian, package)?;
    let control = shell::capture(shell::program("dpkg-deb", ["--field"]).arg(&file))?;
    root.write(control.as_bytes(), &format!("var/lib/dpkg/status.d/{package}"), 0o644)?;
    let copyright = format!("usr/share/doc/{package}/copyright");
    // libgcc-s1's is a link into another package's folder.
    match fs::read(debian.join(&copyright)) {
        Ok(text) => root.write(&text, &copyright, 0o644),
        Err(_) => Ok(()),
    }
}

/// Debian's certificate authorities in one file, as `update-ca-certificates` writes them.
fn certificates(debian: &Path) -> Result<Vec<u8>> {
    let folder = debian.join("usr/share/ca-certificates/mozilla");
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut all = Vec::new();
    for path in &paths {
        let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        all.extend_from_slice(text.trim_ascii_end());
        all.push(b'\n');
    }
    if paths.is_empty() {
        bail!("no certificates in {}", folder.display());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::Release;
    use super::super::binary::PROCESSORS;
    use super::{Image, certificates};
    use serde_json::Value;
    use std::fs;
    use std::path::Path;
    use xtask::archive::{Stage, checksum};
    use xtask::shell;

    /// What a descriptor leads to, and that it is what the descriptor says.
    fn follow(layout: &Path, descriptor: &Value) -> Vec<u8> {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let path = layout.join("blobs/sha256").join(digest);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(descriptor["size"], bytes.len());
        assert_eq!(digest, checksum(&path).unwrap());
        bytes
    }

    #[test]
    fn the_archive_leads_from_its_index_to_each_processors_layer() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path();
        let release = Release { version: "1.2.3".to_owned(), epoch: 1, out: work.join("out") };
        let mut image = Image::new(work).unwrap();
        for processor in PROCESSORS {
            let made = Stage::new(&work.join(processor.name)).unwrap();
            made.write(processor.name.as_bytes(), "root/usr/bin/gpuwho", 0o755).unwrap();
            let tar = made.folder().join("layer.tar");
            made.tar(&tar, &["root"], 1).unwrap();
            image.add_layer(&release, processor, &tar, made.folder()).unwrap();
        }
        let archive = work.join("image.tar");
        image.write(&release, work, &archive).unwrap();
        let read = work.join("read");
        fs::create_dir(&read).unwrap();
        let unpack = ["--extract", "--file"];
        shell::run(shell::program("tar", unpack).arg(&archive).arg("--directory").arg(&read))
            .unwrap();
        let json = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).unwrap();
        let top = json(fs::read(read.join("index.json")).unwrap());
        let name = &top["manifests"][0]["annotations"]["io.containerd.image.name"];
        assert_eq!(name, "docker.io/library/gpuwho:1.2.3");
        let index = json(follow(&read, &top["manifests"][0]));
        for (descriptor, processor) in index["manifests"].as_array().unwrap().iter().zip(PROCESSORS)
        {
            assert_eq!(descriptor["platform"]["architecture"], processor.debian);
            let manifest = json(follow(&read, descriptor));
            let config = json(follow(&read, &manifest["config"]));
            assert_eq!(config["architecture"], processor.debian);
            assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/gpuwho");
            let layer = work.join("layer.tar.gz");
            fs::write(&layer, follow(&read, &manifest["layers"][0])).unwrap();
            shell::run(shell::program("gzip", ["--decompress", "--force"]).arg(&layer)).unwrap();
            let diff = format!("sha256:{}", checksum(&work.join("layer.tar")).unwrap());
            assert_eq!(config["rootfs"]["diff_ids"][0], diff);
        }
    }

    #[test]
    fn certificates_are_one_file_in_a_fixed_order() {
        let folder = tempfile::tempdir().unwrap();
        let stage = Stage::new(&folder.path().join("debian")).unwrap();
        let place = |name: &str| format!("usr/share/ca-certificates/mozilla/{name}");
        stage.write(b"second\n\n", &place("b.crt"), 0o644).unwrap();
        stage.write(b"first", &place("a.crt"), 0o644).unwrap();
        assert_eq!(certificates(stage.folder()).unwrap(), b"first\nsecond\n");
        let empty = Stage::new(&folder.path().join("empty")).unwrap();
        assert!(certificates(empty.folder()).is_err());
    }
}

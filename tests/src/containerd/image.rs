//! Container images without a registry: an OCI image layout in one archive, as `ctr images import`
//! reads it. All images share one layer: the folders a container expects, and one static program.

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::env::consts::ARCH;

/// What a root file system must have for the runtime to mount things on, and for programs of the
/// host to be mounted into.
const FOLDERS: &[&str] =
    &["bin", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sys", "tmp", "usr", "var"];

/// An image of the archive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Image<'a> {
    /// Full name, with host and tag.
    pub(super) name: &'a str,
    /// What runs when a container says nothing else.
    pub(super) command: &'a [&'a str],
}

/// An archive of images, each with the program at a path.
pub(super) fn archive(program: (&str, &[u8]), images: &[Image<'_>]) -> Vec<u8> {
    let mut blobs = BTreeMap::new();
    let layer = layer(program);
    let diff_id = format!("sha256:{}", hex(&layer));
    let layer = put(&mut blobs, "application/vnd.oci.image.layer.v1.tar", layer);
    let manifests: Vec<_> = images
        .iter()
        .map(|image| {
            let config = json!({
                "architecture": architecture(),
                "os": "linux",
                "config": { "Cmd": image.command, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"] },
                "rootfs": { "type": "layers", "diff_ids": [diff_id] },
            });
            let kind = "application/vnd.oci.image.config.v1+json";
            let config = put(&mut blobs, kind, config.to_string().into_bytes());
            let kind = "application/vnd.oci.image.manifest.v1+json";
            let manifest = json!({
                "schemaVersion": 2,
                "mediaType": kind,
                "config": config,
                "layers": [layer],
            });
            let mut manifest = put(&mut blobs, kind, manifest.to_string().into_bytes());
            manifest["platform"] = json!({ "architecture": architecture(), "os": "linux" });
            manifest["annotations"] = json!({ "io.containerd.image.name": image.name });
            manifest
        })
        .collect();
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    });
    let mut tar = Tar::default();
    tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
    tar.file("index.json", 0o644, index.to_string().as_bytes());
    for (name, blob) in &blobs {
        tar.file(&format!("blobs/sha256/{name}"), 0o644, blob);
    }
    tar.end()
}

fn layer((path, program): (&str, &[u8])) -> Vec<u8> {
    let mut tar = Tar::default();
    for folder in FOLDERS {
        tar.folder(folder);
    }
    tar.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n");
    tar.file(path, 0o755, program);
    tar.end()
}

/// Keeps a blob under its digest and gives the descriptor that names it.
fn put(blobs: &mut BTreeMap<String, Vec<u8>>, kind: &str, blob: Vec<u8>) -> Value {
    let name = hex(&blob);
    let descriptor =
        json!({ "mediaType": kind, "digest": format!("sha256:{name}"), "size": blob.len() });
    blobs.insert(name, blob);
    descriptor
}

fn hex(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    let nibbles = digest.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
    nibbles.filter_map(|nibble| char::from_digit(nibble.into(), 16)).collect()
}

/// This machine in the words of OCI, which are Go's.
fn architecture() -> &'static str {
    match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Length of a tar header, and what every file's content is padded to.
const BLOCK: usize = 512;

/// A tar archive in the ustar format.
#[derive(Debug, Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn folder(&mut self, name: &str) {
        self.0.extend(header(&format!("{name}/"), 0o755, 0, b'5'));
    }

    fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.0.extend(header(name, mode, content.len(), b'0'));
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
    }

    /// Two empty blocks close it.
    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}

/// The header of an entry that belongs to root; its checksum counts its own field as spaces.
fn header(name: &str, mode: u32, size: usize, kind: u8) -> Vec<u8> {
    let with_checksum = |checksum: &str| {
        let fields: [(&str, usize); 8] = [
            (name, 100),
            (&format!("{mode:07o}"), 8),
            ("0000000", 8),
            ("0000000", 8),
            (&format!("{size:011o}"), 12),
            ("00000000000", 12),
            (checksum, 8),
            (&char::from(kind).to_string(), 1),
        ];
        let mut header = Vec::with_capacity(BLOCK);
        for (text, width) in fields {
            let end = header.len() + width;
            header.extend(text.as_bytes());
            header.resize(end, 0);
        }
        header.resize(257, 0);
        header.extend(b"ustar\x0000");
        header.resize(BLOCK, 0);
        header
    };
    let sum: u32 = with_checksum("        ").into_iter().map(u32::from).sum();
    with_checksum(&format!("{sum:06o}\0 "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn tar_reads_what_is_in_the_archive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.tar");
        let images = ["a:1", "b:2"].map(|name| Image { name, command: &["/pause"] });
        std::fs::write(&path, archive(("pause", b"\x7fELF"), &images)).unwrap();
        let output =
            Command::new("tar").arg("-xf").arg(&path).arg("-C").arg(folder.path()).output();
        assert!(output.as_ref().unwrap().status.success(), "{output:?}");
        let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        let index: Value = serde_json::from_slice(&read("index.json")).unwrap();
        let names: Vec<_> = index["manifests"]
            .as_array()
            .unwrap()
            .iter()
            .map(|manifest| manifest["annotations"]["io.containerd.image.name"].clone())
            .collect();
        assert_eq!(names, ["a:1", "b:2"]);
        // Same command, same image: two names of one digest.
        assert_eq!(index["manifests"][0]["digest"], index["manifests"][1]["digest"]);
        let digest = index["manifests"][0]["digest"].as_str().unwrap().replace(':', "/");
        let manifest: Value = serde_json::from_slice(&read(&format!("blobs/{digest}"))).unwrap();
        let layer = manifest["layers"][0]["digest"].as_str().unwrap().replace(':', "/");
        let layer = read(&format!("blobs/{layer}"));
        assert_eq!(manifest["layers"][0]["size"], layer.len());
        assert_eq!(manifest["layers"][0]["digest"], format!("sha256:{}", hex(&layer)));
    }
}

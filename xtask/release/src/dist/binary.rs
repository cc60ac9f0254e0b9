//! The program for one processor: linked for an old glibc, with the list of its dependencies embedded,
//! and without a path of the machine that built it.

use super::contents::PROGRAM;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use xtask::setup::{self, Want, dist as tools};
use xtask::{place, shell};

/// A processor to build for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Processor {
    /// As the kernel and RPM call it.
    pub(super) name: &'static str,
    /// As Debian, Go and OCI call it.
    pub(super) debian: &'static str,
    /// Debian's name of the folder of its libraries.
    pub(super) libraries: &'static str,
    /// The dynamic loader, where programs name it.
    pub(super) loader: &'static str,
}

/// Those that there are release files for.
pub(super) const PROCESSORS: &[Processor] = &[
    Processor {
        name: "x86_64",
        debian: "amd64",
        libraries: "x86_64-linux-gnu",
        loader: "/lib64/ld-linux-x86-64.so.2",
    },
    Processor {
        name: "aarch64",
        debian: "arm64",
        libraries: "aarch64-linux-gnu",
        loader: "/lib/ld-linux-aarch64.so.1",
    },
];

/// The glibc that the program needs: RHEL 8's, older than that of Ubuntu 20.04 and Debian 11.
pub(super) const GLIBC: (u32, u32) = (2, 28);

impl Processor {
    /// As Rust calls it.
    fn triple(&self) -> String {
        format!("{}-unknown-linux-gnu", self.name)
    }

    /// Builds the program below `target` with a profile of Cargo.toml and gives its path. The BPF
    /// programs are built once, for every processor.
    pub(super) fn compile(&self, target: &Path, profile: &str) -> Result<PathBuf> {
        setup::ensure(&["arm64"], Want::Must)?;
        let objects = target.join("dist/bpf");
        bpf_objects(&objects)?;
        let triple = self.triple();
        let (major, minor) = GLIBC;
        let path = tools::search_path()?;
        let zigbuild = ["auditable", "zigbuild", "--locked", "--package", PROGRAM];
        let mut command = shell::program("cargo", zigbuild);
        command.args(["--profile", profile]);
        command.args(["--target", &format!("{triple}.{major}.{minor}")]).env("PATH", path);
        command.arg("--target-dir").arg(target);
        command.env("CARGO_ZIGBUILD_ZIG_PATH", tools::zig()?);
        command.env("CARGO_ZIGBUILD_CACHE_DIR", target.join("dist/zig"));
        command.env("ZIG_GLOBAL_CACHE_DIR", target.join("dist/zig-global"));
        command.env("GPUWHO_BPF_OBJECT_DIR", objects);
        let (rust, c) = remapped()?;
        command.env("CARGO_ENCODED_RUSTFLAGS", rust).env("CFLAGS", c);
        shell::run(&mut command)?;
        Ok(target.join(&triple).join(profile).join(PROGRAM))
    }
}

/// Options for rustc and for C compilers that replace this machine's paths.
fn remapped() -> Result<(String, String)> {
    let home = match env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => env::home_dir().context("neither CARGO_HOME nor HOME is set")?.join(".cargo"),
    };
    let places = [(place::root(), "/gpuwho"), (home, "/cargo")];
    let options =
        |option: &str| places.clone().map(|(from, to)| format!("{option}={}={to}", from.display()));
    // The byte 0x1f separates cargo's encoded flags.
    Ok((options("--remap-path-prefix").join("\u{1f}"), options("-ffile-prefix-map").join(" ")))
}

/// Builds the BPF programs, or finds them built, and puts them into a folder, whose path stays the same
/// so that cargo builds the agent once.
fn bpf_objects(into: &Path) -> Result<()> {
    let format = "--message-format=json-render-diagnostics";
    let check = ["check", "--package", "gpuwho-bpf", "--lib", format];
    let messages = shell::output(&mut shell::cargo(check))?;
    let folder = messages.lines().find_map(out_folder).context("cargo names no build script")?;
    fs::create_dir_all(into).with_context(|| format!("making {}", into.display()))?;
    let probes =
        fs::read_dir(place::root().join("agent-ebpf/src/bin")).context("reading probes")?;
    for probe in probes {
        let stem = probe?.path().file_stem().context("a probe without a name")?.to_owned();
        let (from, to) = (folder.join(&stem), into.join(&stem));
        let object = fs::read(&from).with_context(|| format!("reading {}", from.display()))?;
        ensure!(!object.is_empty(), "{} is empty: no BPF toolchain", from.display());
        if fs::read(&to).ok().as_ref() != Some(&object) {
            fs::write(&to, object).with_context(|| format!("writing {}", to.display()))?;
        }
    }
    Ok(())
}

/// Where the build script of agent/crates/bpf wrote to, if one of cargo's messages is about it.
fn out_folder(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_bpf = message["package_id"].as_str()?.contains("/agent/crates/bpf#");
    let is_script = message["reason"] == "build-script-executed";
    (is_bpf && is_script).then(|| message["out_dir"].as_str().map(PathBuf::from))?
}

/// Fails where a program needs a newer glibc than it was linked for.
pub(super) fn check_glibc(program: &Path) -> Result<()> {
    let versions = ["--version-info", "--wide"];
    let text = shell::capture(shell::program("readelf", versions).arg(program))?;
    let newest = newest_glibc(&text).context("the program needs no version of glibc")?;
    ensure!(newest <= GLIBC, "{} needs glibc {}.{}", program.display(), newest.0, newest.1);
    Ok(())
}

/// The newest version of glibc's symbols that readelf lists.
fn newest_glibc(text: &str) -> Option<(u32, u32)> {
    let names = text.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_"));
    names
        .filter_map(|version| {
            let mut numbers = version.split('.').map(str::parse);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::{newest_glibc, out_folder};
    use std::path::Path;

    #[test]
    fn symbol_versions_compare_by_number() {
        let needs = "0x0010:   Name: GLIBC_2.9  Flags: none\n0x0020:   Name: GLIBC_2.28  Flags: none\n\
                     0x0030:   Name: GCC_3.0\n0x0040:   Name: GLIBC_2.2.5\n";
        assert_eq!(newest_glibc(needs), Some((2, 28)));
        assert_eq!(newest_glibc("Name: GCC_3.0"), None);
    }

    #[test]
    fn the_folder_is_that_of_the_build_script_with_the_bpf_programs() {
        let message = r#"{"reason":"build-script-executed","package_id":"path+file:///r/agent/crates/bpf#gpuwho-bpf@0.1.0",
            "out_dir":"/r/target/debug/build/gpuwho-bpf-1/out"}"#;
        let expected = Path::new("/r/target/debug/build/gpuwho-bpf-1/out");
        assert_eq!(out_folder(message).as_deref(), Some(expected));
        assert_eq!(out_folder(&message.replace("/bpf#", "/nccl#")), None);
        assert_eq!(
            out_folder(&message.replace("build-script-executed", "compiler-artifact")),
            None
        );
    }
}

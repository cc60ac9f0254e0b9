//! A real Kubernetes on this machine: builds its programs from the Go modules of `tests/cluster` (half an
//! hour the first time), and runs the tests that install the chart into it. Not a part of CI.
//!
//! The tests run in namespaces of their own for mounts and network, in which the node's usual paths are
//! theirs; cgroups and processes are the machine's, below a cgroup of their own.

use crate::dist;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::compile::{self, Profile};
use xtask::setup::{self, Want, dist as tools};
use xtask::{collector, containerd, place, shell, unpacked};

/// The variable that tells the tests where the programs are.
const VARIABLE: &str = "GPUWHO_TEST_CLUSTER";
/// The folder of `go.mod`, with a device plugin as its own program.
const MODULE: &str = "tests/cluster";
/// What the module names as its tools.
const PROGRAMS: &[&str] =
    &["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"];
/// Debian's packages, as their names are here: package, path in it, name for the tests.
const PACKAGES: &[[&str; 3]] = &[
    ["etcd-server", "usr/bin/etcd", "etcd"],
    ["containernetworking-plugins", "usr/lib/cni/bridge", "cni/bridge"],
    ["containernetworking-plugins", "usr/lib/cni/host-local", "cni/host-local"],
    ["containernetworking-plugins", "usr/lib/cni/loopback", "cni/loopback"],
];
/// Kinds that the chart can make and Kubernetes does not have: module of `tests/cluster/definitions`, file.
const DEFINITIONS: &[[&str; 2]] = &[
    [PROMETHEUS_OPERATOR, "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"],
    [
        PROMETHEUS_OPERATOR,
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ],
    [
        PROMETHEUS_OPERATOR,
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ],
    [
        "github.com/openshift/api",
        "security/v1/zz_generated.crd-manifests/0000_03_config-operator_01_securitycontextconstraints.crd.yaml",
    ],
];
const PROMETHEUS_OPERATOR: &str = "github.com/prometheus-operator/prometheus-operator";
/// Debian's release.
const SUITE: &str = "bookworm";
/// Started or loaded by the tests.
pub(crate) const PARTS: &[&str] = &["gpuwho", "gpuwho-fake-nvml", "gpuwho-tests"];

/// What `cargo xtask kubernetes` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Only tests with this in their names
    #[arg(default_value = "kubernetes::cluster::")]
    filter: String,
}

/// `cargo xtask kubernetes`.
pub(crate) fn kubernetes(request: &Request) -> Result<()> {
    compile::setup_toolchain()?;
    setup::ensure(&["test", "containerd", "collector"], Want::Must)?;
    let collector = collector::for_tests()?;
    let containerd = containerd::for_tests()?;
    let folder = place::target("kubernetes");
    gather(&folder)?;
    compile::packages(Profile::Debug, PARTS)?;
    dist::image_of(&compile::agent(Profile::Debug), &folder.join("gpuwho.tar"))?;
    let mut command = e2e(&request.filter)?;
    command.env(VARIABLE, &folder).env(collector::VARIABLE, collector);
    command.envs(containerd.map(|folder| (containerd::VARIABLE, folder)));
    command.envs(collector::for_cluster()?);
    shell::run(&mut command)
}

/// The end-to-end tests of a name, in namespaces of their own for mounts and network.
pub(crate) fn e2e(filter: &str) -> Result<Command> {
    let programs = compile::test_programs(&mut shell::cargo(["build"]), &["gpuwho-tests"])?;
    let e2e = programs.iter().find(|program| program.name == "e2e").context("no program e2e")?;
    let mut command =
        shell::program("unshare", ["--mount", "--propagation", "private", "--net", "--"]);
    command.arg(&e2e.path).args([filter, "--nocapture", "--test-threads=1"]);
    command.current_dir(&e2e.folder);
    Ok(command)
}

/// Puts all programs under the names by which the tests start them.
fn gather(folder: &Path) -> Result<()> {
    let plugins = folder.join("cni");
    fs::create_dir_all(&plugins).with_context(|| format!("making {}", plugins.display()))?;
    for [package, path, name] in PACKAGES {
        link(&unpacked::program(package, SUITE, path)?, &folder.join(name))?;
    }
    link(&tools::build_go_program(tools::HELM)?, &folder.join("helm"))?;
    for name in PROGRAMS {
        let package = format!("k8s.io/kubernetes/cmd/{name}");
        link(&build(name, &package, &["go.mod", "go.sum"])?, &folder.join(name))?;
    }
    define(&folder.join("definitions"))?;
    let plugin = build("device-plugin", ".", &["go.mod", "go.sum", "main.go"])?;
    link(&plugin, &folder.join("device-plugin"))
}

/// Puts the definitions into a folder.
fn define(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let go = setup::go().context("no suitable Go")?;
    let mut command = shell::program(go, ["mod", "download", "-json"]);
    command.current_dir(place::root().join(MODULE).join("definitions"));
    let modules = shell::output(command.env("GOTOOLCHAIN", "local"))?;
    for [module, path] in DEFINITIONS {
        let found = module_folder(&modules, module)
            .with_context(|| format!("go.mod of the definitions names no {module}"))?;
        let name = Path::new(path).file_name().context("a path without a name")?;
        link(&found.join(path), &folder.join(name))?;
    }
    Ok(())
}

/// Where a module is, of those that `go mod download -json` lists.
fn module_folder(modules: &str, name: &str) -> Option<PathBuf> {
    let mut modules = serde_json::Deserializer::from_str(modules).into_iter::<Value>().flatten();
    let module = modules.find(|module| module["Path"] == name)?;
    module["Dir"].as_str().map(PathBuf::from)
}

/// Builds a Go program once for each state of its sources, and gives its path.
fn build(name: &str, package: &str, sources: &[&str]) -> Result<PathBuf> {
    let module = place::root().join(MODULE);
    let mut key = place::FNV_OFFSET;
    for source in sources {
        let path = module.join(source);
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        key = place::fnv1a(key, &bytes);
    }
    let binary = place::cache("cluster")?.join(format!("{name}-{key:016x}"));
    if binary.is_file() {
        return Ok(binary);
    }
    let go = setup::go().context("no suitable Go")?;
    eprintln!("building {name}: up to a quarter of an hour the first time");
    let text = fs::read_to_string(module.join("go.mod")).context("reading go.mod")?;
    let version = version(&text).context("go.mod names no version of k8s.io/kubernetes")?;
    // Without its version a program believes that it is v0.0.0, and the others do too.
    let flags = format!("-s -w -X k8s.io/component-base/version.gitVersion={version}");
    // Built beside the final name and moved, so that an interrupted build is never used.
    let unfinished = binary.with_extension("unfinished");
    let mut command = shell::program(go, ["build", "-trimpath", "-ldflags", &flags, "-o"]);
    command.arg(&unfinished).arg(package).current_dir(module);
    shell::run(command.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local"))?;
    fs::rename(&unfinished, &binary).with_context(|| format!("moving to {}", binary.display()))?;
    Ok(binary)
}

/// The version of Kubernetes in the text of a `go.mod`.
fn version(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == "k8s.io/kubernetes").then(|| words.next())?)
}

/// Gives a file another name; one that is there goes.
pub(crate) fn link(target: &Path, name: &Path) -> Result<()> {
    if name.symlink_metadata().is_ok() {
        fs::remove_file(name).with_context(|| format!("removing {}", name.display()))?;
    }
    symlink(target, name).with_context(|| format!("linking {}", name.display()))
}

#[cfg(test)]
mod tests {
    use super::{DEFINITIONS, MODULE, PROGRAMS, module_folder, version};
    use std::fs;
    use xtask::place;

    #[test]
    fn the_module_names_the_version_and_every_program() {
        let text = fs::read_to_string(place::root().join(MODULE).join("go.mod")).unwrap();
        let version = version(&text).unwrap();
        assert!(version.starts_with("v1."), "{version}");
        for name in PROGRAMS {
            assert!(text.contains(&format!("\tk8s.io/kubernetes/cmd/{name}\n")), "{name}");
        }
        // Each module of Kubernetes' own tree is of the same release.
        let staged = version.replacen("v1.", "v0.", 1);
        let replaced: Vec<_> = text.lines().filter(|line| line.contains(" => ")).collect();
        assert!(replaced.iter().all(|line| line.ends_with(&staged)), "{replaced:#?}");
        assert_eq!(version_of_nothing(), None);
    }

    #[test]
    fn every_definition_is_of_a_module_that_is_named_and_has_a_checksum() {
        let read = |name: &str| {
            fs::read_to_string(place::root().join(MODULE).join("definitions").join(name)).unwrap()
        };
        let (modules, sums) = (read("go.mod"), read("go.sum"));
        for [module, _] in DEFINITIONS {
            let line = modules.lines().find(|line| line.starts_with(&format!("\t{module} ")));
            let sum = format!("{} h1:", line.unwrap().trim());
            assert!(sums.contains(&sum), "{sum}");
        }
    }

    #[test]
    fn a_modules_folder_is_found_by_its_path() {
        let listed = "{\"Path\": \"a/b\", \"Dir\": \"/mod/a/b@v1\"}\n{\"Path\": \"a\", \"Error\": \"gone\"}\n";
        assert_eq!(module_folder(listed, "a/b").unwrap().to_str(), Some("/mod/a/b@v1"));
        assert_eq!(module_folder(listed, "a"), None);
        assert_eq!(module_folder(listed, "b"), None);
        assert_eq!(module_folder("not JSON", "b"), None);
    }

    fn version_of_nothing() -> Option<&'static str> {
        version("module x\n")
    }
}

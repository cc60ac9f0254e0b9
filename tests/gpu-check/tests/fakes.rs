//! gpu-check itself, on a driver whose both libraries are fakes that know of each other: its rows
//! say what is so, also where something is not as it must be.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use gpuwho_tests::nvml::FakeNvml;
use serde_json::Value;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// As nvidia-smi answers, for the fields that the scenario has.
const SMI: &str = r#"#!/bin/sh
for argument; do case $argument in --query-gpu=*) fields=${argument#--query-gpu=};; esac; done
line=
IFS=,
for field in $fields; do
  case $field in
    uuid) value=GPU-c0da0000-0000-4000-8000-000000000000;;
    name) value="NVIDIA H200";;
    index) value=0;;
    serial) value=1650323000099;;
    pci.bus_id) value=00000000:10:00.0;;
    driver_version) value=580.95.05;;
    memory.total) value=143771;;
    memory.used) value=2560;;
    temperature.gpu) value=WARMTH;;
    power.limit|enforced.power.limit) value=700.00;;
    clocks.mem) value=3201;;
    fan.speed) value="[N/A]";;
    nonsense.*|memory.reserved) echo "Field \"$field\" is not a valid field to query."; exit 2;;
    *) value="[N/A]";;
  esac
  line="$line${line:+, }$value"
done
echo "$line"
"#;

/// As NVIDIA's binding answers, by the program that asks it; PyTorch is not there, or says that it computed much.
const PYTHON: &str = r#"#!/bin/sh
case $2 in
*pynvml*) echo '[{"uuid": "GPU-c0da0000-0000-4000-8000-000000000000", "name": "NVIDIA H200",
"memory.total": "150754820096", "temperature": "WARMTH", "power.enforced": "700.0", "clock.memory": "3201"}]' |
  tr -d '\n'; echo;;
*torch.mm*) PRODUCTS;;
esac
"#;

/// Starts no server: clients are as other programs.
const MPS: &str = "#!/bin/sh\n";

/// A scenario of a driver that says what is not so.
const LIES: &str = "gpu-check-lies";

/// Four seconds of products.
const PRODUCTS: &str = r#"began=$(date +%s); sleep 4
echo "{\"of\": \"float16\", \"size\": 4096, \"began\": $began, \"ended\": $((began + 4)), \"flop\": 4e18}""#;

/// What gpu-check says, by check, of the driver of a scenario while the vendor's own tools read this warmth.
fn check(folder: &Path, scenario: &str, warmth: &str) -> BTreeMap<String, (String, String)> {
    let nvml = FakeNvml::install(folder, scenario).unwrap();
    let tools = folder.join("tools");
    fs::create_dir(&tools).unwrap();
    for (name, text) in [("nvidia-smi", SMI), ("python3", PYTHON), ("nvidia-cuda-mps-control", MPS)]
    {
        let program = tools.join(name);
        let products = if scenario == LIES { PRODUCTS } else { "" };
        let text = text.replace("WARMTH", warmth).replace("PRODUCTS", products);
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let built = Path::new(env!("CARGO_BIN_EXE_gpu-check"));
    let library = built.with_file_name("libcuda.so");
    assert!(library.exists(), "cargo build -p gpuwho-fake-cuda");
    symlink(&library, tools.join("libcuda.so.1")).unwrap();
    let rows = folder.join("rows.json");
    let mut path = vec![tools.clone()];
    path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let mut command = Command::new(built);
    let pids: PathBuf = folder.join("nvml/pids/loads");
    nvml.apply(&mut command)
        .args(["--window", if scenario == LIES { "2" } else { "3" }, "--readings", "5", "--json"])
        .arg(&rows)
        .arg("--library")
        .arg(nvml.library())
        .env("PATH", env::join_paths(path).unwrap())
        .env("LD_LIBRARY_PATH", &tools)
        .env("FAKE_CUDA_PIDS", pids)
        .stdout(Stdio::null());
    let status = command.status().unwrap();
    assert_eq!(status.code(), Some(1), "a check that fails is a failure");
    let rows: Vec<Value> = serde_json::from_str(&fs::read_to_string(rows).unwrap()).unwrap();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(row, "check"), (text(row, "verdict"), text(row, "seen")))).collect()
}

#[test]
fn every_row_says_what_is_so() {
    let folder = tempfile::tempdir().unwrap();
    let rows = check(folder.path(), "gpu-check", "45");
    let verdict = |check: &str| rows.get(check).map(|(verdict, _)| verdict.as_str());
    let expected = [
        ("time in the driver", "pass"),
        ("devices", "pass"),
        ("agrees with nvidia-smi", "pass"),
        ("agrees with NVIDIA's binding", "pass"),
        // The fake's counters know nothing of copies, and there is no PyTorch.
        ("copies over PCIe", "skip"),
        ("matrix products", "skip"),
        ("owner after a fork", "skip"),
        ("NCCL calls of PyTorch", "skip"),
        ("two ranks on one device", "skip"),
        ("memory of a process", "pass"),
        ("busy device", "pass"),
        ("split of two processes", "pass"),
        ("clients of MPS", "pass"),
        // The fake holds no device file, and the fault's event names nobody.
        ("release", "fail"),
        ("XID of a faulty program", "fail"),
    ];
    for (check, wanted) in expected {
        assert_eq!(verdict(check), Some(wanted), "{check}: {rows:#?}");
    }
    let (_, cost) = &rows["cost"];
    // The agent, its reader, and for a minute the helper that has read the programs' environments.
    let is_whole = ["in 2 processes", "in 3 processes"].iter().any(|end| cost.ends_with(end));
    assert!(is_whole, "{cost}");
    let (_, fault) = &rows["XID of a faulty program"];
    assert!(fault.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{fault}");
    let (_, split) = &rows["split of two processes"];
    assert!(split.contains("the driver says 60.0 % and 20.0 %"), "{split}");
}

#[test]
fn a_driver_that_says_what_is_not_so_fails_every_check_of_a_value() {
    let folder = tempfile::tempdir().unwrap();
    let rows = check(folder.path(), LIES, "45");
    for (check, field) in [
        ("agrees with nvidia-smi", "temperature.gpu"),
        ("agrees with NVIDIA's binding", "temperature"),
    ] {
        let (verdict, seen) = &rows[check];
        assert_eq!(verdict, "fail");
        assert!(seen.contains(&format!("{field}: the tool 45, gpuwho 55")), "{seen}");
    }
    for check in [
        "memory of a process",
        "busy device",
        "split of two processes",
        "clients of MPS",
        "performance counters",
        "half of the time",
        "FP32 load",
        "FP64 load",
        "tensor load",
        "memory load",
        "copies over PCIe",
        "matrix products",
        "release",
        "XID of a faulty program",
    ] {
        assert_eq!(rows.get(check).map(|row| row.0.as_str()), Some("fail"), "{check}: {rows:#?}");
    }
}

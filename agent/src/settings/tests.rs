use crate::agent::configuration::Configuration;
use crate::settings::Settings;
use gpuwho_model::config::Flags;
use std::fs;
use std::path::Path;
use std::time::Duration;

fn load(file: &str, env: &[(&str, &str)]) -> Result<Settings, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gpuwho.toml");
    fs::write(&path, file).unwrap();
    let env: Vec<_> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Configuration::load(Some(&path), &env, &Flags::default())
        .map(|loaded| loaded.settings)
        .map_err(|error| error.to_string().replace(path.to_str().unwrap(), "FILE"))
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_one() {
    assert_eq!(
        load("[agent]\n\nintervall = \"5s\"\n", &[]).unwrap_err(),
        "FILE:3: unknown key `intervall`; did you mean `interval`?"
    );
}

#[test]
fn an_unknown_section_is_named() {
    let error = load("[nvidai]\n", &[]).unwrap_err();
    assert_eq!(error, "FILE:1: unknown key `nvidai`; did you mean `nvidia`?");
}

#[test]
fn a_wrong_type_is_named_with_its_line() {
    let error = load("[devices]\nbpf = 3\n", &[]).unwrap_err();
    assert_eq!(error, "FILE:2: `devices.bpf` is the number 3; write true or false, without quotes");
}

#[test]
fn errors_of_types_name_the_key_and_speak_no_rust() {
    for (text, expected) in [
        (
            "[agent]\ninterval = 10\n",
            "FILE:2: `agent.interval` is the number 10; write a text in quotes",
        ),
        (
            "[devices]\nnodes = \"/dev/x\"\n",
            "FILE:2: `devices.nodes` is the text \"/dev/x\"; write a list, like [\"one\", \"two\"]",
        ),
        (
            "[agent]\nseries_limit = -1\n",
            "FILE:2: `agent.series_limit` is the number -1; write a whole number that is not negative",
        ),
        (
            "[agent]\nlog = \"info\"\nlog = \"warn\"\n",
            "FILE:3: `log` is set twice; leave one of them out",
        ),
        (
            "agent = 3\n",
            "FILE:1: `agent` is the number 3; write a section: [name], and its keys below",
        ),
    ] {
        assert_eq!(load(text, &[]).unwrap_err(), expected);
    }
    let error = load("", &[("GPUWHO_DEVICES_BPF", "perhaps")]).unwrap_err();
    let expected = "environment variable GPUWHO_DEVICES_BPF: is the text \"perhaps\"; \
                    write true or false, without quotes";
    assert_eq!(error, expected);
}

#[test]
fn the_interval_of_opentelemetry_is_obeyed_below_our_own() {
    let theirs = ("OTEL_METRIC_EXPORT_INTERVAL", "2500");
    let interval =
        |env: &[(&str, &str)]| load("[agent]\ninterval = \"5s\"\n", env).unwrap().interval;
    assert_eq!(interval(&[theirs]), Duration::from_millis(2500));
    assert_eq!(interval(&[theirs, ("GPUWHO_AGENT_INTERVAL", "7s")]), Duration::from_secs(7));
    let error = load("", &[(theirs.0, "10s")]).unwrap_err();
    assert!(error.starts_with("`OTEL_METRIC_EXPORT_INTERVAL`: `10s` is not a number"), "{error}");
}

#[test]
fn the_environment_overrides_the_file() {
    let settings = load(
        "[agent]\ninterval = \"5s\"\n[advisories]\nenabled = true\n",
        &[("GPUWHO_AGENT_INTERVAL", "2s"), ("GPUWHO_ADVISORIES_ENABLED", "false")],
    );
    let settings = settings.unwrap();
    assert_eq!((settings.interval, settings.advisories), (Duration::from_secs(2), false));
}

#[test]
fn an_unknown_variable_of_a_known_section_is_named() {
    assert_eq!(
        load("", &[("GPUWHO_AGENT_INTERVALL", "2s")]).unwrap_err(),
        "environment variable GPUWHO_AGENT_INTERVALL: unknown key `intervall`; \
         did you mean `interval`?"
    );
}

#[test]
fn a_duration_without_a_unit_is_refused_with_an_example() {
    let error = load("[agent]\ninterval = \"10\"\n", &[]).unwrap_err();
    assert!(error.starts_with("`agent.interval`: `10` is not a duration"), "{error}");
    assert!(error.ends_with("like 500ms, 10s or 2m"), "{error}");
}

#[test]
fn too_few_series_for_one_device_are_refused() {
    assert_eq!(load("", &[]).unwrap().series_limit, 50_000);
    assert_eq!(load("[agent]\nseries_limit = 2000\n", &[]).unwrap().series_limit, 2000);
    let error = load("[agent]\nseries_limit = 10\n", &[]).unwrap_err();
    assert!(error.starts_with("`agent.series_limit`: fewer than 500 series"), "{error}");
}

#[test]
fn limits_of_cpu_and_of_families_are_checked() {
    assert_eq!(load("", &[]).unwrap().cpu_limit, None);
    assert_eq!(load("[agent]\ncpu_limit = 2.5\n", &[]).unwrap().cpu_limit, Some(0.025));
    for wrong in ["0.1", "1001.0", "nan", "-1.0"] {
        let error = load(&format!("[agent]\ncpu_limit = {wrong}\n"), &[]).unwrap_err();
        assert!(error.contains("is not between 0.5 and 1000"), "{error}");
    }
    let error = load("[metrics]\nlimits = { \"gpu.pwer\" = 5 }\n", &[]).unwrap_err();
    assert!(error.starts_with("`metrics.limits`: no metric is called `gpu.pwer`"), "{error}");
}

#[test]
fn too_short_an_interval_is_refused() {
    let error = load("[agent]\ninterval = \"1ms\"\n", &[]).unwrap_err();
    assert_eq!(
        error,
        "`agent.interval`: 1ms is shorter than 100ms; use 1s or longer; 10s is the default"
    );
}

fn check(text: &str) -> Result<Configuration, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gpuwho.toml");
    fs::write(&file, text).unwrap();
    Configuration::check(&file).map_err(|error| error.to_string())
}

#[test]
fn wrong_values_are_refused_with_key_value_and_remedy() {
    for (text, key, value, remedy) in [
        ("[otlp]\ncompression = \"xz\"", "otlp.compression", "xz", "`gzip`"),
        ("[sinks]\nfile_max_bytes = 1000", "sinks.file_max_bytes", "1000", "1048576"),
        ("[sinks]\nfile_max_age = \"1s\"", "sinks.file_max_age", "`1s`", "1m or more"),
        ("[sinks]\nfile_keep = 5000", "sinks.file_keep", "5000", "1000 or less"),
        ("[agent]\nlog = \"inof\"", "agent.log", "`inof`", "write error, warn, info"),
        ("[agent]\nlog_format = \"xml\"", "agent.log_format", "`xml`", "text or json"),
        ("[agent]\nlog = \"\"", "agent.log", "``", "write error, warn, info"),
        ("[agent]\nlog = \"info,loud\"", "agent.log", "loud", "gpuwho::export=debug"),
        ("[agent]\ninterval = \"1000d\"", "agent.interval", "longer than a day", "10s"),
        ("[metrics]\nlevel = \"most\"", "metrics.level", "`most`", "basic, default or all"),
        ("[metrics]\nexclude = [\"gpu.pwer\"]", "metrics.exclude", "gpu.pwer", "gpuwho metrics"),
        ("[otlp]\ntimeout_ms = 0", "otlp.timeout_ms", "`0`", "10000"),
        ("[otlp]\nqueue_bytes = 1", "otlp.queue_bytes", "1", "65536"),
        ("[paths]\nrun = \"\"", "paths.run", "``", "begin it with /"),
        ("[paths]\nproc = \"proc\"", "paths.proc", "`proc`", "begin it with /"),
        ("[paths]\nsocket_mode = \"rw\"", "paths.socket_mode", "`rw`", "octal"),
        ("[paths]\nsocket_mode = \"0888\"", "paths.socket_mode", "`0888`", "octal"),
        ("[paths]\nsocket_mode = \"4777\"", "paths.socket_mode", "`4777`", "octal"),
        ("[paths]\nsocket_mode = \"+666\"", "paths.socket_mode", "`+666`", "octal"),
        ("[nvidia]\nlibrary = \"/etc/passwd\"", "nvidia.library", "/etc/passwd", "driver's"),
        ("[nvidia]\nlibrary = \"/dev/zero\"", "nvidia.library", "/dev/zero", "driver's"),
        ("[nvidia]\nlibrary = \"\"", "nvidia.library", "``", "driver's"),
        ("[nvidia]\nlibrary = \"lib/x.so\"", "nvidia.library", "`lib/x.so`", "begin"),
        ("[devices]\nnodes = [\"relative\"]", "devices.nodes", "`relative`", "absolute paths"),
        ("[devices]\nnodes = [\"/*\"]", "devices.nodes", "`/*`", "absolute paths"),
        ("[devices]\nnodes = [\"/dev/*\"]", "devices.nodes", "`/dev/*`", "absolute paths"),
        ("[devices]\nnodes = [\"/dev/*/x\"]", "devices.nodes", "`/dev/*/x`", "absolute paths"),
        ("[devices]\nnodes = [\"/dev/../x\"]", "devices.nodes", "`/dev/../x`", "absolute paths"),
        ("[devices]\nnodes = [\"/dev/\"]", "devices.nodes", "`/dev/`", "absolute paths"),
        ("[slurm]\njobs = \"jobs\"", "slurm.jobs", "`jobs`", "begin it with /"),
        ("[kubernetes]\ncri = [\"x.sock\"]", "kubernetes.cri", "`x.sock`", "begin it with /"),
        ("[sinks]\nfile = \"\"", "sinks.file", "``", "begin it with /"),
    ] {
        let error = check(text).unwrap_err();
        assert!(error.contains(key) && error.contains(value), "{text}: {error}");
        assert!(error.contains(remedy), "{text}: {error}");
    }
}

#[test]
fn common_values_are_accepted() {
    let text = "[agent]\nshow_others = true\n[paths]\nsocket_mode = \"0660\"\n[devices]\n\
                nodes = [\"/dev/nvidia*\", \"/dev/nvidia-caps/*\", \"/dev/kfd\"]\n\
                [nvidia]\nlibrary = \"libnvidia-ml.so.1\"\n[kubernetes]\nnested = true\n";
    let settings = check(text).unwrap();
    let control = settings.settings.control;
    assert_eq!((control.mode, control.show_others), (0o660, true));
    assert!(settings.settings.attribution.nested);
    let default = check("").unwrap();
    assert_eq!(
        (default.settings.control.mode, default.settings.control.show_others),
        (0o666, false)
    );
    assert!(!default.settings.attribution.nested);
}

#[test]
fn a_configuration_without_end_or_writer_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let long = folder.path().join("long.toml");
    fs::write(&long, "#".repeat((1 << 20) + 1)).unwrap();
    for (path, words) in [
        (fifo.as_path(), "not a regular file"),
        (Path::new("/dev/zero"), "not a regular file"),
        (&long, "longer than"),
    ] {
        let began = std::time::Instant::now();
        let error = Configuration::check(path).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(began.elapsed() < Duration::from_secs(30), "waited");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_what_to_do_about_it() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: &Path| Configuration::check(path).unwrap_err().to_string();
    let missing = error(&folder.path().join("no.toml"));
    assert!(missing.ends_with("; `gpuwho config sample` prints one to begin with"), "{missing}");
    let is_folder = error(folder.path());
    assert!(is_folder.ends_with("; name a file of text with --config"), "{is_folder}");
}

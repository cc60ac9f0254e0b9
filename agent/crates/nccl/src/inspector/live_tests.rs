//! Tests against real processes that keep their files open, as the plugin does.

use super::*;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::{Sample, Value};
use gpuwho_owners::attribute::{Evidence, KernelCgroups, Opened as DeviceOpened};
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process that runs a shell script until its input ends.
struct Writer {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Writer {
    /// `$1` is the directory. The script prints `ready`.
    fn run(script: &str, folder: &Path, environment: &[(&str, &str)]) -> Self {
        Self::of("sh", script, folder, environment)
    }

    fn of(shell: &str, script: &str, folder: &Path, environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(shell)
            .args(["-c", script, "sh", folder.to_str().unwrap()])
            .envs(environment.iter().copied())
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut writer = Self { child, output };
        writer.expect_line("ready");
        writer
    }

    fn expect_line(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), expected);
    }

    /// Has its records open, as the plugin does.
    fn with_records(folder: &Path) -> Self {
        Self::run("exec 3>>\"$1/node-pid$$.log\"; echo ready; read go", folder, &[])
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn records(&self, folder: &Path) -> PathBuf {
        folder.join(format!("node-pid{}.log", self.pid()))
    }

    fn process(&self) -> ProcKey {
        gpuwho_owners::proc_scan::living(&Paths::default(), self.pid()).unwrap()
    }

    fn go_on(&mut self) {
        writeln!(self.child.stdin.as_ref().unwrap()).unwrap();
    }

    fn end(mut self) {
        self.go_on();
        self.child.wait().unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Stage {
    folder: tempfile::TempDir,
    ownership: Ownership,
    communicators: Arc<Communicators>,
    source: Inspector,
}

impl Stage {
    fn new() -> Self {
        Self::with(|_| Settings::default())
    }

    fn with(settings: impl Fn(&Path) -> Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (paths, communicators) = (Paths::default(), Arc::default());
        let ownership = Ownership::new(&paths);
        let (settings, files) = (settings(folder.path()), TenantFiles::direct(&paths));
        let source = Inspector::new(settings, &files, &ownership, &communicators, &<_>::default());
        Self { folder, ownership, communicators, source }
    }

    /// The process opens a device.
    fn hold(&self, process: ProcKey) {
        self.ownership.observe(Evidence::Opened(DeviceOpened {
            process,
            uid: 0,
            comm: "train".into(),
            cgroups: KernelCgroups::default(),
            node: "/dev/nvidia0".into(),
            at_ns: boot_time_ns(),
        }));
    }

    fn end(&self, process: ProcKey) {
        let at_ns = boot_time_ns();
        self.ownership.observe(Evidence::Exited { process, at_ns });
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn read(&mut self) -> Samples {
        let mut batch = Batch::new(NAME, SystemTime::now());
        self.source.collect(&mut batch);
        Samples(batch.samples.into_iter().map(|(_, sample)| sample).collect())
    }
}

struct Samples(Vec<Sample>);

impl Samples {
    /// The values of a metric; with dimensions, those with this first one.
    fn of(&self, name: &str, dim: u8) -> Vec<i64> {
        let of = self.0.iter().filter(|sample| sample.metric.name == name);
        let of = of.filter(|sample| sample.metric.dims.is_empty() || sample.dims[0] == dim);
        of.map(|sample| match &sample.value {
            Value::Int(number) => *number,
            Value::Histogram(histogram) => i64::try_from(histogram.count()).unwrap(),
            Value::Double(_) => panic!("{name} is no whole number"),
        })
        .collect()
    }

    fn lines(&self, outcome: LineOutcome) -> i64 {
        self.of("nccl.inspector.lines", outcome as u8)[0]
    }

    fn files(&self, state: FileState) -> i64 {
        self.of("nccl.inspector.files", state as u8)[0]
    }
}

fn recorded(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/fixtures/nccl-inspector/");
    std::fs::read_to_string(format!("{folder}{name}")).unwrap()
}

/// The recorded lines, with the PID of this process.
fn lines_of(pid: u32) -> String {
    recorded("inspector-2.30.7-v4.0-plain.jsonl").replace("11229", &pid.to_string())
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

const ALL_REDUCE: u8 = gpuwho_model::catalog::nccl::Operation::AllReduce as u8;

#[test]
fn lines_are_counted_when_they_are_complete() {
    let mut stage = Stage::new();
    let writer = Writer::with_records(stage.path());
    stage.hold(writer.process());
    assert_eq!(stage.read().files(FileState::Read), 1);
    let (path, text) = (writer.records(stage.path()), lines_of(writer.pid()));
    let half = text.len() / 2;
    append(&path, &text[..half]);
    let reported = stage.read();
    assert_eq!(reported.lines(LineOutcome::Taken), 7);
    append(&path, &text[half..]);
    append(&path, "rubbish\n");
    let reported = stage.read();
    assert_eq!(
        (reported.lines(LineOutcome::Taken), reported.lines(LineOutcome::Malformed)),
        (15, 1)
    );
    assert_eq!(reported.of("nccl.inspector.duration", ALL_REDUCE).iter().sum::<i64>(), 3);
    let bytes = reported.of("nccl.inspector.bytes", ALL_REDUCE).iter().sum::<i64>();
    assert_eq!(bytes, 2_097_152 + 10_485_760 + 18_874_368);
    assert_eq!(stage.source.report().state, SourceState::Ready);
    assert_eq!(stage.communicators.of(writer.process()).len(), 1);
}

#[test]
fn the_last_lines_of_a_process_are_counted_and_its_file_is_closed() {
    let mut stage = Stage::new();
    let writer = Writer::with_records(stage.path());
    let (process, path) = (writer.process(), writer.records(stage.path()));
    stage.hold(process);
    stage.read();
    append(&path, &lines_of(writer.pid()));
    writer.end();
    stage.end(process);
    let reported = stage.read();
    assert_eq!(reported.lines(LineOutcome::Taken), 15);
    assert!(stage.source.files.is_empty());
    assert_eq!(stage.read().of("nccl.inspector.info", 0), [0; 0]);
    assert!(stage.communicators.of(process).is_empty());
}

#[test]
fn a_process_that_leaves_its_file_between_two_readings_is_found_by_its_environment() {
    let mut stage = Stage::new();
    let environment = [
        ("NCCL_INSPECTOR_ENABLE", "1"),
        ("NCCL_INSPECTOR_DUMP_DIR", "made/later"),
        ("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "500"),
    ];
    std::fs::create_dir_all(stage.path().join("made/later")).unwrap();
    let script = "echo ready; read go; cat \"$1/lines\" > made/later/node-pid$$.log; \
        echo done; read go";
    let mut writer = Writer::run(script, stage.path(), &environment);
    let process = writer.process();
    std::fs::write(stage.path().join("lines"), lines_of(writer.pid())).unwrap();
    stage.hold(process);
    assert_eq!(stage.read().files(FileState::Read), 0);
    writer.go_on();
    writer.expect_line("done");
    writer.end();
    stage.end(process);
    assert_eq!(stage.read().lines(LineOutcome::Taken), 15);
}

#[test]
fn a_file_in_a_configured_directory_belongs_to_its_writer() {
    let directories = |folder: &Path| vec![folder.join("logs")];
    let mut stage =
        Stage::with(|folder| Settings { directories: directories(folder), ..Settings::default() });
    let logs = stage.path().join("logs");
    assert_eq!(stage.read().files(FileState::Read), 0);
    assert_eq!(stage.source.report().state, SourceState::Degraded);
    std::fs::create_dir(&logs).unwrap();
    let writer = Writer::run("echo ready; read go", stage.path(), &[]);
    let process = writer.process();
    stage.hold(process);
    stage.read();
    let path = logs.join(format!("node-pid{}.log", writer.pid()));
    std::fs::write(&path, lines_of(writer.pid())).unwrap();
    std::fs::write(logs.join("node-pid1.log"), lines_of(1)).unwrap();
    // It is running, and the file is not among its open files: any process may have created it.
    let reported = stage.read();
    assert_eq!((reported.files(FileState::Read), reported.files(FileState::Unowned)), (0, 2));
    writer.end();
    stage.end(process);
    let reported = stage.read();
    assert_eq!((reported.lines(LineOutcome::Taken), reported.files(FileState::Unowned)), (15, 1));
}

#[test]
fn lines_with_another_pid_are_rejected() {
    let mut stage = Stage::new();
    let writer = Writer::with_records(stage.path());
    stage.hold(writer.process());
    append(&writer.records(stage.path()), &lines_of(1));
    let reported = stage.read();
    assert_eq!((reported.lines(LineOutcome::Taken), reported.lines(LineOutcome::Foreign)), (0, 15));
}

#[test]
fn a_file_that_grows_faster_than_the_rate_is_read_in_part() {
    let mut stage = Stage::with(|_| Settings { rate: 2_000, ..Settings::default() });
    let writer = Writer::with_records(stage.path());
    stage.hold(writer.process());
    stage.read();
    let text = lines_of(writer.pid());
    append(&writer.records(stage.path()), &text);
    let reported = stage.read();
    let (taken, skipped) =
        (reported.lines(LineOutcome::Taken), reported.of("nccl.inspector.skipped", 0)[0]);
    assert!((1..15).contains(&taken), "{taken} lines");
    let read = i64::try_from(text.len()).unwrap() - skipped;
    assert!((1..=2_000 * 30).contains(&read), "{read} bytes read");
}

#[test]
fn records_from_before_the_agents_start_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::with_records(folder.path());
    append(&writer.records(folder.path()), &lines_of(writer.pid()));
    let mut stage = Stage::new();
    // Start times differ by at least hundredths of a second.
    stage.source.began += Duration::from_secs(1);
    stage.hold(writer.process());
    assert_eq!(stage.read().lines(LineOutcome::Taken), 0);
    append(&writer.records(folder.path()), &lines_of(writer.pid()));
    assert_eq!(stage.read().lines(LineOutcome::Taken), 15);
}

#[test]
fn an_inspector_that_writes_nothing_is_reported_with_the_remedy() {
    let mut stage = Stage::new();
    let environment = [("NCCL_INSPECTOR_ENABLE", "1")];
    let writer = Writer::run("echo ready; read go", stage.path(), &environment);
    stage.hold(writer.process());
    stage.read();
    let report = stage.source.report();
    assert_eq!(report.state, SourceState::Degraded);
    assert_eq!(
        report.reason,
        "1 processes have the Inspector on and no interval: it writes nothing"
    );
    assert!(report.remedy.contains("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"));
}

#[test]
fn means_are_exported_while_they_are_fresh_and_complete() {
    let mut stage = Stage::new();
    let script = "exec 3>>\"$1/nccl_inspector_metrics_0011.prom\"; echo ready; read go";
    let writer = Writer::run(script, stage.path(), &[]);
    stage.hold(writer.process());
    let path = stage.path().join("nccl_inspector_metrics_0011.prom");
    append(&path, &recorded("inspector-2.30.7-v5.1.prom"));
    let at = |ago: u64| {
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(ago)).unwrap();
    };
    let bandwidths = |reported: &Samples| {
        let of =
            reported.0.iter().filter(|s| s.metric.name == "nccl.inspector.recent.bus_bandwidth");
        of.count()
    };
    // Just written: the writer may not be done.
    assert_eq!(bandwidths(&stage.read()), 0);
    at(5);
    assert_eq!(bandwidths(&stage.read()), 14);
    assert_eq!(bandwidths(&stage.read()), 14);
    at(120);
    assert_eq!(bandwidths(&stage.read()), 0);
}

#[test]
fn means_of_a_shared_file_are_not_exported() {
    let mut stage = Stage::new();
    let script = "exec 3>>\"$1/nccl_inspector_metrics_0011.prom\"; echo ready; read go";
    let writers = [0, 1].map(|_| Writer::run(script, stage.path(), &[]));
    for writer in &writers {
        stage.hold(writer.process());
    }
    let reported = stage.read();
    assert_eq!((reported.files(FileState::Read), reported.files(FileState::Shared)), (0, 1));
    assert_eq!(stage.source.report().state, SourceState::Degraded);
}

#[test]
fn files_beyond_the_limit_are_reported() {
    const EACH: usize = 200;
    let mut stage = Stage::new();
    let script = format!(
        "ulimit -n 1024; for n in $(seq {EACH}); do exec {{fd}}>\"$1/node$n-pid$$.log\"; done; \
         echo ready; read go"
    );
    let writers: Vec<_> = (0..3).map(|_| Writer::of("bash", &script, stage.path(), &[])).collect();
    for writer in &writers {
        stage.hold(writer.process());
    }
    let reported = stage.read();
    let all = i64::try_from(writers.len() * EACH).unwrap();
    let most =
        i64::try_from(writers.len() * gpuwho_owners::tenant_files::search::MAX_OF_PROCESS).unwrap();
    assert_eq!(
        [FileState::Read, FileState::Refused].map(|is| reported.files(is)),
        [most, all - most]
    );
    let report = stage.source.report();
    assert_eq!(report.reason, "504 files cannot be read: no plain files, or too many");
}

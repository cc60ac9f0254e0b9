//! What every call goes through: the scenario as it is now, the clock, the call log and the
//! injected failures.

use crate::chance;
use crate::nodes;
use crate::scenario::failure::{About, Failure};
use crate::scenario::{Scenario, ScenarioError};
use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// An NVML return code other than success.
pub(crate) type Code = u32;

/// No kernel driver is loaded.
const DRIVER_NOT_LOADED: Code = 9;
/// The loaded kernel driver is of another version than the library.
const VERSION_MISMATCH: Code = 18;

/// The scenario as read from one state of its file.
pub(crate) struct Loaded {
    pub(crate) scenario: Scenario,
    changed: Option<SystemTime>,
    /// The version of this library, which is that of the driver whenever anything is answered.
    pub(crate) library: String,
    /// Its CUDA version.
    pub(crate) cuda: i32,
    /// Calls each failure has concerned so far.
    hits: Vec<AtomicU64>,
}

/// One call: what it sees.
pub(crate) struct Call {
    pub(crate) loaded: Arc<Loaded>,
    /// Scenario time in seconds.
    pub(crate) seconds: f64,
    /// The same when this library was initialised.
    pub(crate) loaded_at: f64,
}

impl Call {
    /// How one field of this call fails; notes it in the log, as a call named `field 186`.
    pub(crate) fn field_failure(&self, field: u32, device: u32) -> Option<Code> {
        log(&format!("field {field}"), Some(device));
        self.part_failure(device, |failure| failure.field == Some(field))
    }

    /// How one metric of this call fails.
    pub(crate) fn metric_failure(&self, metric: u32, device: u32) -> Option<Code> {
        self.part_failure(device, |failure| failure.metric == Some(metric))
    }

    fn part_failure(&self, device: u32, is_of_part: impl Fn(&Failure) -> bool) -> Option<Code> {
        let about = Some(About { device, instance: false });
        let Loaded { scenario, hits, .. } = &*self.loaded;
        let mut concerned = scenario.failures.iter().zip(hits).filter(|(failure, hits)| {
            is_of_part(failure)
                && failure.in_time(about, self.seconds)
                && hits.fetch_add(1, Ordering::Relaxed) >= failure.after_calls
        });
        concerned.next()?.0.code
    }
}

/// A call this long sleeps.
const LONG_CALL: Duration = Duration::from_millis(1);

/// A hang looks this often whether its time is over.
const HANG_STEP: Duration = Duration::from_millis(20);

/// What this process has loaded: a file that is replaced later changes nothing for it.
static LIBRARY: OnceLock<(String, i32)> = OnceLock::new();

static LOADED: Mutex<Option<Arc<Loaded>>> = Mutex::new(None);

/// Scenario time of the last `nvmlInit`, as the bits of a double.
static LOADED_AT: AtomicU64 = AtomicU64::new(0);

/// Reads the scenario; the answer to `nvmlInit`.
pub(crate) fn start() -> Result<(), ScenarioError> {
    epoch();
    let loaded = load()?;
    LOADED_AT.store(now().to_bits(), Ordering::Relaxed);
    nodes::open("nvidiactl");
    *LOADED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(loaded));
    Ok(())
}

/// Forgets the scenario: what follows is not initialised.
pub(crate) fn stop() {
    *LOADED.lock().unwrap_or_else(PoisonError::into_inner) = None;
    nodes::close();
}

/// Begins a call: logs it, then fails, waits, hangs or crashes as the scenario says. `None` before
/// `nvmlInit`.
pub(crate) fn begin(name: &str, about: Option<About>) -> Option<Result<Call, Code>> {
    log(name, about.map(|about| about.device));
    let loaded = current()?;
    let seconds = now();
    chance::answer_truly();
    match loaded.scenario.kernel_at(seconds) {
        None => return Some(Err(DRIVER_NOT_LOADED)),
        Some(kernel) if kernel != loaded.library => return Some(Err(VERSION_MISMATCH)),
        Some(_) => {}
    }
    take_time(&loaded.scenario, name);
    let loaded_at = f64::from_bits(LOADED_AT.load(Ordering::Relaxed));
    let call = Call { loaded, seconds, loaded_at };
    Some(call.fails(name, about).map_or(Ok(call), Err))
}

impl Call {
    /// Fails, waits, hangs or crashes as the scenario says of a function, or of a part of one.
    pub(crate) fn fails(&self, name: &str, about: Option<About>) -> Option<Code> {
        let scenario = &self.loaded.scenario;
        let failures = scenario.failures.iter().zip(&self.loaded.hits);
        let mut concerned = failures.filter(|(failure, hits)| {
            failure.concerns(name, about, self.seconds)
                && hits.fetch_add(1, Ordering::Relaxed) >= failure.after_calls
                && chance::comes(scenario.seed, failure.probability)
        });
        concerned.find_map(|(failure, _)| suffer(failure, scenario.seed))
    }
}

/// Takes as long as the scenario says that a call takes. A sleep is too long by some fifty
/// microseconds, so a short call waits awake, as the real one does in the kernel.
fn take_time(scenario: &Scenario, name: &str) {
    let begun = Instant::now();
    let named = |call: &str| scenario.latencies.iter().find(|latency| latency.call == call);
    let Some(latency) = named(name).or_else(|| named("*")) else { return };
    let time = Duration::from_micros(latency.us);
    if time >= LONG_CALL {
        thread::sleep(time);
        return;
    }
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Scenario time.
pub(crate) fn now() -> f64 {
    simulated().unwrap_or_else(|| epoch_seconds(SystemTime::now()) - epoch())
}

/// The scenario time that a file says, where one is named: a simulated clock.
fn simulated() -> Option<f64> {
    static CLOCK: OnceLock<Option<PathBuf>> = OnceLock::new();
    let clock = CLOCK.get_or_init(|| env::var_os("FAKE_NVML_CLOCK").map(PathBuf::from));
    fs::read_to_string(clock.as_ref()?).ok()?.trim().parse().ok()
}

/// The device at a place of the driver's list now, by its index in the scenario.
pub(crate) fn listed(place: u32) -> Option<u32> {
    let loaded = current()?;
    let device = loaded.scenario.listed(now()).nth(usize::try_from(place).ok()?)?;
    Some(device.index)
}

/// Scenario time 0 in seconds since the Unix epoch.
pub(crate) fn epoch() -> f64 {
    static EPOCH: OnceLock<f64> = OnceLock::new();
    *EPOCH.get_or_init(|| {
        let given = env::var("FAKE_NVML_EPOCH").ok().and_then(|text| text.parse().ok());
        given.unwrap_or_else(|| epoch_seconds(SystemTime::now()))
    })
}

fn epoch_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

pub(crate) fn scenario_path() -> Result<PathBuf, ScenarioError> {
    env::var_os("FAKE_NVML_SCENARIO").map(PathBuf::from).ok_or(ScenarioError::Unnamed)
}

fn changed() -> Option<SystemTime> {
    fs::metadata(scenario_path().ok()?).ok()?.modified().ok()
}

fn load() -> Result<Loaded, ScenarioError> {
    let changed = changed();
    let mut scenario = Scenario::load(&scenario_path()?)?.only("nvidia");
    let hits = scenario.failures.iter().map(|_| AtomicU64::new(0)).collect();
    let library = LIBRARY.get_or_init(|| {
        let (version, cuda) = scenario.library_at(now());
        (version.to_owned(), cuda)
    });
    let loaded_at = scenario.loaded_at(now());
    scenario.groups.iter_mut().for_each(|group| group.counters_from = loaded_at);
    Ok(Loaded { scenario, changed, library: library.0.clone(), cuda: library.1, hits })
}

/// The scenario, read again if its file changed. A file that became wrong is reported once and
/// the last good scenario stays.
fn current() -> Option<Arc<Loaded>> {
    let mut slot = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = slot.as_ref()?;
    let now = changed();
    if now != known.changed {
        let fresh = load().unwrap_or_else(|error| {
            complain(&error);
            let (scenario, library) = (known.scenario.clone(), known.library.clone());
            Loaded { scenario, changed: now, library, cuda: known.cuda, hits: Vec::new() }
        });
        *slot = Some(Arc::new(fresh));
    }
    slot.clone()
}

/// Says on standard error what is wrong with the scenario.
pub(crate) fn complain(error: &ScenarioError) {
    // A closed standard error has no reader to tell.
    let _ = writeln!(std::io::stderr(), "fake nvml: {error}");
}

/// Lives through a failure; gives the code to return, if any.
fn suffer(failure: &Failure, seed: u64) -> Option<Code> {
    if !failure.prints.is_empty() {
        // A library that prints does not look whether anybody reads it.
        let _ = writeln!(std::io::stdout(), "{}", failure.prints);
    }
    if failure.crash {
        process::abort();
    }
    if failure.segfault {
        chance::segfault();
    }
    if failure.uninterruptible {
        chance::sleep_uninterruptibly();
    }
    while failure.hang && failure.until.is_none_or(|until| now() < until) {
        thread::park_timeout(HANG_STEP);
    }
    thread::sleep(Duration::from_millis(failure.delay_ms));
    if failure.garbage {
        chance::answer_garbage(seed);
    }
    failure.code
}

/// Notes a call in the log. Written before the call does anything, so that one that hangs shows.
fn log(call: &str, device: Option<u32>) {
    note(&serde_json::json!({"call": call, "device": device}));
}

/// Adds a line to the log: an object, with time and PID.
pub(crate) fn note(what: &serde_json::Value) {
    static LOG: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let log = LOG.get_or_init(|| {
        let path = env::var_os("FAKE_NVML_LOG")?;
        File::options().append(true).create(true).open(path).ok().map(Mutex::new)
    });
    if let Some(log) = log {
        let mut line = what.clone();
        line["time"] = epoch_seconds(SystemTime::now()).into();
        line["pid"] = process::id().into();
        let mut file = log.lock().unwrap_or_else(PoisonError::into_inner);
        // A log on a full disk loses lines; tests that count them fail and show it.
        let _ = writeln!(file, "{line}");
    }
}

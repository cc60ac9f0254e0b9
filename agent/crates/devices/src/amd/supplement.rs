//! What the files of a device do not have of its identity, by a process of its own for `libamd_smi.so`
//! ([`super::smi`]).
//!
//! A thread starts the process when a device is read that it has not answered for, at most every five
//! minutes, gives it half a minute, and closes it. A reading never waits for it, except outside the agent,
//! where nothing comes later. The files win: only what they do not have is taken. A library that is missing,
//! hangs, crashes or answers nonsense thus costs its own words. What comes from the process is a vendor's
//! code's: texts have a bound and no control characters. The process has the devices open: a release of the
//! devices closes it too, and the library is asked again after it.

use super::super::link::{Link, LinkError, Program};
use super::super::reader::{CompleteIdentity, Settings};
use super::super::wire::{Frame, Outcome, Request};
use super::super::{library, sysfs};
use super::{DRIVER, UNNAMED, smi};
use crate::files::Files;
use crate::link::ExitingChild;
use gpuwho_collect::snapshot::Control;
use gpuwho_collect::source::Context;
use gpuwho_model::ids::GpuUuid;
use gpuwho_owners::inventory::GpuInfo;
use gpuwho_owners::inventory::facts::Fact;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Between two runs of the process.
const EVERY: Duration = Duration::from_mins(5);
/// For one run.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long the process may take to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// For a call that returns, so that only one that hangs is reported.
const STALL: Duration = Duration::from_secs(5);
/// How long the first reading waits outside the agent.
const WAIT: Duration = Duration::from_secs(3);
/// Bytes of a text, and devices that are remembered.
const MAX_TEXT: usize = 128;
const MAX_DEVICES: usize = 256;
/// Characters of why there is nothing.
const MAX_PROBLEM: usize = 300;
/// What would make it better.
const ABSENT: &str = "no file has the product's name: install libamd_smi.so (ROCm's amd-smi-lib)";
/// The facts that the library has.
const FACTS: [Fact; 3] = [Fact::Part, Fact::Vbios, Fact::Module];
/// So that a process which ends inside the library leaves no lock to other users of it.
const THREAD_ONLY: &str = "RSMI_MUTEX_THREAD_ONLY";

/// Why a run has no answer.
#[derive(Debug, thiserror::Error)]
enum SupplementError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("{0}")]
    Refused(String),
    #[error("{0} has not returned")]
    Stuck(String),
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Late,
    #[error("an earlier process is still inside a call")]
    StillThere,
    #[error("the devices are released")]
    Released,
}

/// What the library has of each board.
type Known = BTreeMap<String, GpuInfo>;

#[derive(Default)]
struct Latest {
    known: Known,
    /// There is no library.
    is_absent: bool,
    problem: String,
    begun: Option<Instant>,
    is_running: bool,
}

#[derive(Default)]
struct Shared {
    latest: Mutex<Latest>,
    is_answered: Condvar,
}

/// What a run needs.
struct Runner {
    settings: Settings,
    control: Control,
    /// The last process, if it did not end.
    exiting_child: Mutex<Option<ExitingChild>>,
}

/// Begins without a process.
pub(super) fn start(context: &Context, settings: &Settings) -> CompleteIdentity {
    let control = Control::default();
    context.readers.push(control.clone());
    context.holding.push(control.clone());
    let settings = settings.clone();
    let runner = Arc::new(Runner { settings, control, exiting_child: Mutex::default() });
    let shared = Arc::new(Shared::default());
    let mut may_wait = !context.is_agent;
    Box::new(move |info, note| {
        let mut latest = shared.latest.lock();
        let is_due = latest.begun.is_none_or(|begun| begun.elapsed() >= EVERY);
        let is_due = is_due && !runner.control.released();
        if is_due && !latest.is_running && !latest.known.contains_key(info.uuid.as_str()) {
            latest.begun = Some(Instant::now());
            latest.is_running = begin(&runner, &shared);
        }
        if std::mem::take(&mut may_wait) {
            let is_running = |latest: &mut Latest| latest.is_running;
            shared.is_answered.wait_while_for(&mut latest, is_running, WAIT);
        }
        note.push_str(&latest.problem);
        if latest.is_absent && is_unnamed(info) {
            note.push_str(ABSENT);
        }
        completed(info, latest.known.get(info.uuid.as_str())?)
    })
}

/// Starts a thread for one run; false if there is none.
fn begin(runner: &Arc<Runner>, shared: &Arc<Shared>) -> bool {
    let (runner, shared) = (Arc::clone(runner), Arc::clone(shared));
    let body = move || {
        let answered = runner.run();
        let mut latest = shared.latest.lock();
        latest.is_running = false;
        latest.problem.clear();
        match answered {
            Ok(None) => latest.is_absent = true,
            Ok(Some(known)) => {
                latest.is_absent = false;
                let room = MAX_DEVICES.saturating_sub(latest.known.len());
                latest.known.extend(known.into_iter().take(room));
            }
            // Due again when the devices are read again.
            Err(SupplementError::Released) => latest.begun = None,
            Err(error) => {
                let text = format!("libamd_smi.so: {error}");
                let clean = text.chars().filter(|char| !char.is_control()).take(MAX_PROBLEM);
                latest.problem = clean.collect();
            }
        }
        drop(latest);
        shared.is_answered.notify_all();
    };
    thread::Builder::new().name("amd:smi".to_owned()).spawn(body).is_ok()
}

impl Runner {
    /// Runs the process once; `None` without a library. Nothing is known while a device sleeps: the library
    /// opens every device, which would wake it.
    fn run(&self) -> Result<Option<Known>, SupplementError> {
        let Settings { library, paths, .. } = &self.settings;
        let found = library::find(&smi::LIBRARY, library.as_deref(), paths)
            .map_err(SupplementError::Refused)?;
        let mut bound = sysfs::bound_devices(paths, &[DRIVER]);
        let is_asleep = bound.any(|(_, _, at)| sysfs::is_suspended(&at, &mut Files::default()));
        if found == Path::new("") {
            return Ok(None);
        }
        if is_asleep {
            return Ok(Some(Known::new()));
        }
        let mut exiting_child = self.exiting_child.lock();
        if exiting_child.as_mut().is_some_and(|old| old.ended(Duration::ZERO).is_none()) {
            return Err(SupplementError::StillThere);
        }
        let environment = [(THREAD_ONLY.into(), "1".into())];
        let mut link = Link::start(&Program {
            path: &self.settings.program,
            vendor: smi::SMI.name,
            library: &found,
            paths,
            off: &[],
            environment: &environment,
            events: false,
            confined: self.settings.confined,
            stall: STALL,
        })?;
        self.control.hold(link.hangup()?.boxed());
        // A release before this has found nothing to close.
        let answered = if self.control.released() {
            Err(SupplementError::Released)
        } else {
            ask(&mut link, Instant::now() + TIMEOUT)
        };
        let is_closed = !self.control.forget_child();
        let mut ended = link.close();
        let status = ended.ended(EXIT_TIMEOUT);
        *exiting_child = status.is_none().then_some(ended);
        match (answered, status) {
            (Err(_), _) if is_closed => Err(SupplementError::Released),
            (Err(SupplementError::Link(_)), Some(status)) => {
                Err(SupplementError::Refused(format!("its process ended early: {status}")))
            }
            (answered, _) => answered.map(Some),
        }
    }
}

/// Reads each device once.
fn ask(link: &mut Link, deadline: Instant) -> Result<Known, SupplementError> {
    let mut known = Known::new();
    let mut failure = None;
    loop {
        match link.receive(deadline)?.ok_or(SupplementError::Late)? {
            Frame::Opened { .. } => {
                link.send(&Request::Read { tick: 1, count: false, openers: Vec::new() })?;
            }
            Frame::Refused { text, .. } => return Err(SupplementError::Refused(text)),
            Frame::Stuck { call, .. } => return Err(SupplementError::Stuck(call.name)),
            Frame::Device { reading, .. } => {
                if let Outcome::Failing(why) = &reading.outcome {
                    failure = Some(why.clone());
                }
                if known.len() < MAX_DEVICES {
                    known.extend(reading.identity.as_ref().and_then(bounded));
                }
            }
            Frame::Counted { .. } => {}
            Frame::Done { .. } => {
                return failure
                    .filter(|_| known.is_empty())
                    .map_or(Ok(known), |why| Err(SupplementError::Refused(why)));
            }
        }
    }
}

/// A board and what is kept of the library's words for it; `None` for an id that is none.
fn bounded(info: &GpuInfo) -> Option<(String, GpuInfo)> {
    let id = word(info.uuid.as_str())?;
    let bare = GpuInfo::new(GpuUuid::new(&id), super::VENDOR.name, 0);
    let words = completed(&bare, info);
    Some((id, words.unwrap_or(bare)))
}

/// An identity with what the files do not have; `None` if the library adds nothing.
fn completed(info: &GpuInfo, words: &GpuInfo) -> Option<GpuInfo> {
    let model = words.model.as_deref().filter(|_| is_unnamed(info)).and_then(word);
    let serial = words.serial.as_deref().filter(|_| info.serial.is_none()).and_then(word);
    let missing = FACTS.into_iter().filter(|fact| info.facts.get(*fact).is_none());
    let mut facts =
        missing.filter_map(|fact| Some((fact, word(words.facts.get(fact)?)?))).peekable();
    if model.is_none() && serial.is_none() && facts.peek().is_none() {
        return None;
    }
    let mut whole = info.clone();
    for (fact, text) in facts {
        whole.facts.set(fact, Some(text));
    }
    whole.model = model.or(whole.model);
    whole.serial = serial.or(whole.serial);
    Some(whole)
}

/// Whether neither a file nor the agent's table has the product's name.
fn is_unnamed(info: &GpuInfo) -> bool {
    info.model.as_ref().is_none_or(|model| model.starts_with(UNNAMED))
}

/// A text that says something; the library writes `N/A`, or a number where it knows no name.
fn word(text: &str) -> Option<String> {
    let is_nothing = text == "N/A" || text.starts_with("0x") || text.trim().is_empty();
    let is_clean = text.len() <= MAX_TEXT && !text.contains(char::is_control);
    (is_clean && !is_nothing).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(model: &str, serial: Option<&str>, vbios: Option<&str>) -> GpuInfo {
        let mut info = GpuInfo {
            model: Some(model.to_owned()),
            serial: serial.map(str::to_owned),
            ..GpuInfo::new(GpuUuid::new("GPU-1"), "amd", 0)
        };
        info.facts.set(Fact::Vbios, vbios.map(str::to_owned));
        info
    }

    #[test]
    fn no_process_is_started_without_a_library_or_while_a_device_sleeps() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices/0000:03:00.0");
        let driver = root.path().join("sys/bus/pci/drivers/amdgpu");
        std::fs::create_dir_all(device.join("power")).unwrap();
        std::fs::create_dir_all(&driver).unwrap();
        std::os::unix::fs::symlink(&device, driver.join("0000:03:00.0")).unwrap();
        let library = root.path().join("libamd_smi.so");
        std::fs::write(&library, "").unwrap();
        let run = |library: &Path, status: &str| {
            std::fs::write(device.join("power/runtime_status"), status).unwrap();
            let program = root.path().join("no-program");
            let mut settings = Settings::new(program, Duration::from_secs(10));
            settings.paths = gpuwho_model::paths::Paths::under(root.path());
            settings.library = Some(library.to_owned());
            let control = Control::default();
            let answered = Runner { settings, control, exiting_child: Mutex::default() }.run();
            answered.map_err(|error| error.to_string())
        };
        assert_eq!(run(Path::new("libnone.so.7"), "active"), Ok(None));
        assert_eq!(run(&library, "suspended"), Ok(Some(Known::new())));
        let begun = run(&library, "active").unwrap_err();
        assert!(begun.contains("no-program"), "{begun}");
    }

    #[test]
    fn only_what_the_files_lack_is_taken() {
        let words = info("AMD Radeon RX 7900 XTX", Some("692"), Some("113-APM"));
        let bare = info("AMD 0x744c", None, None);
        assert_eq!(completed(&bare, &words), Some(words.clone()));
        assert_eq!(completed(&words, &words), None, "and once");
        assert_eq!(
            completed(&info("AMD Instinct MI300X", Some("1"), Some("113-M3")), &words),
            None
        );
    }

    #[test]
    fn a_text_that_says_nothing_or_is_none_is_left_out() {
        let long = "x".repeat(MAX_TEXT + 1);
        for text in ["", " ", "N/A", "0x744c", "a\u{1b}[31mb", "a\nb", &long] {
            assert_eq!(word(text), None, "{text:?}");
        }
        assert_eq!(word("113-D7020100"), Some("113-D7020100".to_owned()));
        let bare = info("AMD 0x744c", None, None);
        let garbage = info("0x744c", Some("N/A"), Some("\u{7}"));
        assert_eq!(completed(&bare, &garbage), None, "the number stays");
    }

    #[test]
    fn of_what_the_process_sends_only_short_words_are_kept() {
        let long = "x".repeat(1 << 20);
        let mut sent = info(&long, Some("692"), Some(&long));
        sent.driver_version = Some(long.clone());
        sent.nodes = vec![long.clone()];
        let (id, kept) = bounded(&sent).unwrap();
        let mut expected = GpuInfo::new(GpuUuid::new("GPU-1"), "amd", 0);
        expected.serial = Some("692".to_owned());
        assert_eq!((id.as_str(), &kept), ("GPU-1", &expected));
        sent.uuid = GpuUuid::new(&long);
        assert_eq!(bounded(&sent), None);
    }
}

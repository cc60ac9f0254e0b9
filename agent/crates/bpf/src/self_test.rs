//! Proves on the running kernel that the probe works: loads every program, lets a process open a
//! device, fork, move, execute another program and exit, and expects exactly these records.

use super::device_users::{OpenHook, Settings, start};
use gpuwho_model::ids::Hierarchy;
use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute::{Evidence, Opened};
use gpuwho_owners::nodes;
use gpuwho_owners::proc_scan::unified_root;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Long enough even for an emulated processor.
const DEADLINE: Duration = Duration::from_secs(20);
/// `/dev/full`: every kernel has it, and no other process opens a node in the test's directory.
const TEST_DEVICE: (u32, u32) = (1, 7);
/// The command name after the exec.
const EXEC_NAME: &str = "gpuwho-became";
/// Opens the node, waits for a line, forks, executes another program and exits. That program has
/// its own path, because a shell may have `sleep` and the like built in.
const SCRIPT: &str =
    "exec 3<\"$0\"; read go; (read none; exit 0) </dev/null; exec \"$1\" --version";

/// Why the self-test failed.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// The test's directory, node, cgroup or process could not be created.
    #[error("{what}")]
    Prepare {
        /// The operation.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// The probe does not load with this hook.
    #[error("{0}")]
    NotLoaded(String),
    /// An expected record did not arrive.
    #[error("not reported within {DEADLINE:?}: {expected}; reported so far: {reported}")]
    Missing {
        /// The expected record.
        expected: &'static str,
        /// The records of the process so far.
        reported: String,
    },
    /// A record is wrong.
    #[error("wrong record: {0}")]
    Wrong(String),
}

/// Runs the test with one hook, or with the best one; returns one line of text, newline included.
pub fn self_test(hook: Option<OpenHook>) -> Result<String, SelfTestError> {
    let paths = Paths::default();
    let fixture = Fixture::prepare(&paths)?;
    let settings = Settings { open_hook: hook.unwrap_or_default(), ..Settings::default() };
    let watched = nodes::Settings {
        nodes: vec![fixture.node.to_string_lossy().into_owned()],
        drivers: Vec::new(),
        vendors: &[],
    };
    let (sender, evidence) = channel();
    let handle = start(settings, watched, &paths, move |evidence| {
        // The receiver is dropped if the test failed.
        let _ = sender.send(evidence);
    })
    .map_err(|source| SelfTestError::Prepare { what: "start the probe".to_owned(), source })?;
    let Some(used) = handle.hook() else {
        return Err(SelfTestError::NotLoaded(handle.report().reason));
    };
    let took = Run { fixture: &fixture, reported: evidence, past: Vec::new() }.run()?;
    if let Some(lost) = handle.report().dropped.iter().find(|(_, count)| *count != 0) {
        return Err(SelfTestError::Wrong(format!("lost events: {lost:?}")));
    }
    Ok(format!("hook {used}: open, fork, move, exec and exit reported; open after {took:?}\n"))
}

/// The files of the test, removed when it is dropped.
struct Fixture {
    folder: PathBuf,
    node: PathBuf,
    cgroup: Option<PathBuf>,
}

impl Fixture {
    fn prepare(paths: &Paths) -> Result<Self, SelfTestError> {
        let name = format!("gpuwho-self-test-{}", std::process::id());
        let failed = |what: &str, path: &Path| {
            let what = format!("{what} {}", path.display());
            move |source: io::Error| SelfTestError::Prepare { what, source }
        };
        // Not the temporary directory, which is often mounted `nodev`.
        let folder = paths.dev.join(&name);
        fs::create_dir(&folder).map_err(failed("make", &folder))?;
        let fixture = Self {
            node: folder.join("node"),
            cgroup: unified_root(paths).map(|root| root.join(&name)),
            folder,
        };
        let number = makedev(TEST_DEVICE.0, TEST_DEVICE.1);
        mknodat(CWD, &fixture.node, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, number)
            .map_err(io::Error::from)
            .map_err(failed("make the device", &fixture.node))?;
        let becomes = fixture.folder.join(EXEC_NAME);
        std::env::current_exe()
            .and_then(|this| symlink(this, &becomes))
            .map_err(failed("make", &becomes))?;
        Ok(fixture)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // At worst a node of /dev/full and an empty cgroup remain.
        let _ = fs::remove_dir_all(&self.folder);
        let _ = self.cgroup.as_ref().map(fs::remove_dir);
    }
}

struct Run<'a> {
    fixture: &'a Fixture,
    reported: Receiver<Evidence>,
    past: Vec<Evidence>,
}

impl Run<'_> {
    fn run(mut self) -> Result<Duration, SelfTestError> {
        let mut child = self.start_child()?;
        let pid = child.id();
        let result = self.watch(&mut child, pid);
        // Fails if the child has already ended, which is the normal case.
        let _ = child.kill();
        let _ = child.wait();
        result
    }

    fn watch(&mut self, child: &mut Child, pid: u32) -> Result<Duration, SelfTestError> {
        let opened = self.expect("the opening", |evidence| match evidence {
            Evidence::Opened(opened) if opened.process.pid == pid => Some(opened.clone()),
            _ => None,
        })?;
        let now = gpuwho_owners::host::boot_time_ns();
        let took = Duration::from_nanos(now.saturating_sub(opened.at_ns));
        self.check(&opened)?;
        self.moves(&opened)?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(b"go\n").map_err(|source| SelfTestError::Prepare {
                what: "write to the test process".to_owned(),
                source,
            })?;
        }
        let forked = self.expect("the fork", |evidence| match evidence {
            Evidence::Forked { parent, child } if *parent == opened.process => Some(child.process),
            _ => None,
        })?;
        self.expect("the end of the fork", |evidence| {
            matches!(evidence, Evidence::Exited { process, .. } if *process == forked).then_some(())
        })?;
        let comm = self.expect("the new program", |evidence| match evidence {
            Evidence::Execed { process, comm } if *process == opened.process => {
                Some(Arc::clone(comm))
            }
            _ => None,
        })?;
        if &*comm != EXEC_NAME {
            let wrong = format!("command name {comm:?} after becoming {EXEC_NAME}");
            return Err(SelfTestError::Wrong(wrong));
        }
        self.expect("the end", |evidence| {
            matches!(evidence, Evidence::Exited { process, .. } if *process == opened.process)
                .then_some(())
        })?;
        self.once(&opened).map(|()| took)
    }

    fn start_child(&self) -> Result<Child, SelfTestError> {
        Command::new("sh")
            .arg("-c")
            .arg(SCRIPT)
            .arg(&self.fixture.node)
            .arg(self.fixture.folder.join(EXEC_NAME))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| SelfTestError::Prepare { what: "run sh".to_owned(), source })
    }

    /// Compares the record with `/proc`; the process is waiting.
    fn check(&self, opened: &Opened) -> Result<(), SelfTestError> {
        let proc = PathBuf::from(format!("/proc/{}", opened.process.pid));
        if !gpuwho_owners::proc_scan::is_alive(&Paths::default(), opened.process) {
            return Err(SelfTestError::Wrong(format!("start time of {opened:?}")));
        }
        let uid = fs::metadata(&proc).map_or(u32::MAX, |found| found.uid());
        let node = self.fixture.node.to_string_lossy();
        if (opened.uid, &*opened.comm, &*opened.node) != (uid, "sh", &*node) {
            return Err(SelfTestError::Wrong(format!("{opened:?}")));
        }
        Ok(())
    }

    /// Moves the process into its own cgroup, if the unified hierarchy is mounted.
    fn moves(&mut self, opened: &Opened) -> Result<(), SelfTestError> {
        let Some(folder) = &self.fixture.cgroup else { return Ok(()) };
        let prepare = |source| SelfTestError::Prepare {
            what: format!("move into {}", folder.display()),
            source,
        };
        fs::create_dir(folder).map_err(prepare)?;
        let id = fs::metadata(folder).map_err(prepare)?.ino();
        fs::write(folder.join("cgroup.procs"), opened.process.pid.to_string()).map_err(prepare)?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.expect("the new cgroup", |evidence| {
            matches!(evidence, Evidence::CgroupMade { id: made, path }
                if made.id == id && path.ends_with(&name))
            .then_some(())
        })?;
        let moved = self.expect("the move", |evidence| match evidence {
            Evidence::Moved { process, cgroups } if *process == opened.process => {
                cgroups.get(Hierarchy::V2)
            }
            _ => None,
        })?;
        if moved != id {
            return Err(SelfTestError::Wrong(format!("moved to cgroup {moved}, not {id}")));
        }
        Ok(())
    }

    fn once(&self, opened: &Opened) -> Result<(), SelfTestError> {
        let times = |wanted: fn(&Evidence) -> Option<u32>| {
            self.past.iter().filter(|evidence| wanted(evidence) == Some(opened.process.pid)).count()
        };
        let openings = times(|evidence| match evidence {
            Evidence::Opened(opened) => Some(opened.process.pid),
            _ => None,
        });
        let ends = times(|evidence| match evidence {
            Evidence::Exited { process, .. } => Some(process.pid),
            _ => None,
        });
        if (openings, ends) == (1, 1) {
            return Ok(());
        }
        Err(SelfTestError::Wrong(format!("opened {openings} times, ended {ends} times")))
    }

    fn expect<T>(
        &mut self,
        expected: &'static str,
        wanted: impl Fn(&Evidence) -> Option<T>,
    ) -> Result<T, SelfTestError> {
        if let Some(found) = self.past.iter().find_map(&wanted) {
            return Ok(found);
        }
        let end = Instant::now() + DEADLINE;
        while let Ok(evidence) =
            self.reported.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            let found = wanted(&evidence);
            self.past.push(evidence);
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(SelfTestError::Missing { expected, reported: format!("{:?}", self.past) })
    }
}

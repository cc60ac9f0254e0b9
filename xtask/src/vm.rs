//! `cargo xtask vm`: the agent's BPF self-test, and its tests with ranks that call a collective
//! library, as root in kernels that this machine does not run.
//!
//! Kernels come from Debian's packages and are only unpacked, never installed. QEMU emulates the
//! processor: hosted machines seldom have nested virtualisation, and some whose KVM is there
//! cannot run an unmodified kernel. So it emulates arm64 just as well, for which all is built once
//! more.

mod boot;
mod initramfs;
mod kernels;
mod libraries;
mod machine;
mod passed;

use crate::setup::{self, Want};
use crate::{compile, parallel, place, shell};
use anyhow::{Context as _, Result, bail};
use boot::Booted;
use initramfs::{Check, Image, PROGRAM, Tests};
use kernels::{Catalog, Kernel};
use libraries::{LIBRARIES, Library};
use machine::{MACHINES, Machine};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Kernels at a time: the checks in a guest wait for one another, so one guest keeps about one of
/// this machine's processors busy.
const AT_A_TIME: usize = 2;

/// Crates with their tests.
type ByLibrary = Vec<(&'static Library, Vec<String>)>;

/// What the probes' table says is to be proved on every kernel.
struct Proofs {
    /// Arguments of `gpuwho self-test`.
    self_tests: Vec<Vec<String>>,
    /// Unit tests of the agent's crates: few, since each loads all programs, which takes an emulated processor
    /// some seconds.
    tests: Vec<String>,
}

impl Proofs {
    /// Asks the agent built for this machine.
    fn ask() -> Result<Self> {
        let agent = compile::debug_agent()?;
        let list = shell::capture(&mut shell::program(agent, ["self-test", "--list"]))?;
        Self::parse(&list).context("`gpuwho self-test --list` names nothing")
    }

    fn parse(list: &str) -> Option<Self> {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        let mut proofs = Self { self_tests: Vec::new(), tests: Vec::new() };
        for line in list.lines() {
            match line.strip_prefix("test ") {
                Some(test) => proofs.tests.push(test.to_owned()),
                None => proofs.self_tests.push(words(line)),
            }
        }
        (!proofs.self_tests.is_empty() && !proofs.tests.is_empty()).then_some(proofs)
    }

    /// The tests that run on a machine, below the crates that have them; fails where none has one.
    fn by_library(&self, machine: &Machine) -> Result<ByLibrary> {
        let tests = self.tests.iter().map(String::as_str).chain(machine.tests.iter().copied());
        let tests: Vec<_> = tests.collect();
        let root = place::root();
        if let Some(test) = libraries::lost(&root, &tests)? {
            bail!("no crate of {LIBRARIES:?} has a test {test}");
        }
        let mut all = Vec::new();
        for library in LIBRARIES {
            let own: Vec<_> = library.own(&root, &tests)?.into_iter().map(str::to_owned).collect();
            all.extend((!own.is_empty()).then_some((library, own)));
        }
        Ok(all)
    }
}

/// What `cargo xtask vm` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Only the newest kernel that begins so (6.1, 6.12.117), or `newest`; may be repeated
    #[arg(long = "kernel", value_name = "PREFIX")]
    kernels: Vec<String>,
    /// Every kernel, also where nothing that reaches the kernel has changed since all passed
    #[arg(long, conflicts_with_all = ["kernels", "arch", "program"])]
    full: bool,
    /// Only kernels for this processor; default: all, or this machine's if a kernel is named
    #[arg(long, value_parser = machine::names())]
    arch: Option<String>,
    /// Run this program instead of the agent's self-test
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// A kernel that has not ended by then is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Arguments for that program
    #[arg(last = true, requires = "program")]
    args: Vec<OsString>,
}

impl Request {
    /// The agent's self-test in the kernels that are due.
    fn due() -> Self {
        let (kernels, args) = (Vec::new(), Vec::new());
        Self { kernels, full: false, arch: None, program: None, timeout: 600, args }
    }

    /// Whether it is left to this task which kernels are booted.
    fn is_open(&self) -> bool {
        self.kernels.is_empty() && self.arch.is_none() && self.program.is_none()
    }

    fn machines(&self, is_whole: bool) -> impl Iterator<Item = &'static Machine> {
        let is_all = self.kernels.is_empty() && self.program.is_none() && is_whole;
        MACHINES.iter().filter(move |machine| match &self.arch {
            Some(name) => machine.name == name,
            None => is_all || machine.is_here(),
        })
    }

    fn prefixes(&self, machine: &Machine, is_whole: bool) -> Vec<&str> {
        match (self.kernels.as_slice(), machine.kernels) {
            ([], [oldest, .., newest]) if !is_whole => vec![oldest, newest],
            ([], all) => all.to_vec(),
            (named, _) => named.iter().map(String::as_str).collect(),
        }
    }
}

/// How many kernels there were.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Booted, and the program succeeded in each.
    pub(crate) booted: usize,
    /// Not to be had here.
    pub(crate) skipped: usize,
    /// How long it took to build what runs in the guests.
    pub(crate) built: Duration,
}

/// One line of the closing table.
struct Row {
    kernel: String,
    seconds: f64,
    result: String,
    checks: String,
}

/// What has been tried so far.
#[derive(Default)]
struct Tried {
    rows: Vec<Row>,
    summary: Summary,
    failed: Vec<String>,
}

impl Tried {
    fn skip(&mut self, machine: &Machine, prefix: &str, why: &str) {
        self.summary.skipped += 1;
        let kernel = format!("{prefix} {}", machine.name);
        let result = format!("skipped: needs {why}");
        self.rows.push(Row { kernel, seconds: 0.0, result, checks: String::new() });
    }

    fn end(&mut self, version: &str, booted: &Booted) {
        self.summary.booted += 1;
        let failure = booted.failure();
        self.failed.extend(failure.is_some().then(|| version.to_owned()));
        self.rows.push(Row {
            kernel: version.to_owned(),
            seconds: booted.took.as_secs_f64(),
            result: failure.unwrap_or_else(|| "passed".to_owned()),
            checks: booted.passed.join(" "),
        });
    }
}

/// Every kernel, if what reaches the kernel has changed since every one passed; `None` otherwise.
pub(crate) fn if_due() -> Result<Option<Summary>> {
    passed::why_all().map(|_| vm(&Request::due())).transpose()
}

/// The oldest and the newest kernel, or every one where that is due; none where there is no emulator.
pub(crate) fn oldest_and_newest() -> Result<()> {
    if let Err(error) = setup::ensure(&["vm"], Want::Must) {
        println!("skipped: {error:#}");
        return Ok(());
    }
    vm(&Request::due()).map(drop)
}

/// `cargo xtask vm`.
pub(crate) fn vm(request: &Request) -> Result<Summary> {
    setup::ensure(&["vm"], Want::Must)?;
    let mut tried = Tried::default();
    let is_whole = is_whole(request);
    // Kept until the last boot, since their images go with them.
    let (mut guests, mut due) = (Vec::new(), Vec::new());
    let began = Instant::now();
    for machine in request.machines(is_whole) {
        let prefixes = request.prefixes(machine, is_whole);
        let kernels = kernels(machine, &prefixes, &mut tried);
        let Some((kernels, busybox)) = kernels else { continue };
        let guest = Guest::build(machine, &busybox, request)?;
        for kernel in kernels {
            let image = guest.image.with(&kernel.version, &guest.checks(request, &kernel))?;
            due.push(Due { machine, kernel, image });
        }
        guests.push(guest);
    }
    tried.summary.built = began.elapsed();
    boot_all(&due, Duration::from_secs(request.timeout), &mut tried)?;
    print_table(&tried.rows);
    if !tried.failed.is_empty() {
        bail!("failed in Linux {}", tried.failed.join(", "));
    }
    if request.is_open() && is_whole && tried.summary.skipped == 0 {
        passed::note(&tried.rows.iter().map(|row| row.kernel.as_str()).collect::<Vec<_>>())?;
    }
    Ok(tried.summary)
}

/// Whether every kernel is booted, where it is left to this task; says why, or why not.
fn is_whole(request: &Request) -> bool {
    if request.full || !request.is_open() {
        return true;
    }
    let why = passed::why_all();
    match &why {
        Some(why) => println!("every kernel: {why}"),
        None => println!("only the oldest and the newest kernel: --full boots every one"),
    }
    why.is_some()
}

/// What is missing here for a machine's kernels.
fn lacking(machine: &Machine) -> Option<String> {
    if !machine.can_be_built_for() {
        return Some(format!("a machine that is {}", machine.name));
    }
    let error = setup::ensure(&[machine.part], Want::Must).err()?;
    Some(format!("what `cargo xtask setup {}` gets ({})", machine.part, error.root_cause()))
}

/// A kernel to boot.
struct Due {
    machine: &'static Machine,
    kernel: Kernel,
    image: PathBuf,
}

/// The kernels that are wanted and busybox for the same machine, as far as they can be had.
fn kernels(
    machine: &'static Machine,
    prefixes: &[&str],
    tried: &mut Tried,
) -> Option<(Vec<Kernel>, PathBuf)> {
    if let Some(why) = lacking(machine) {
        for prefix in prefixes {
            tried.skip(machine, prefix, &why);
        }
        return None;
    }
    let mut catalog = Catalog::of(machine);
    let mut found = None;
    for prefix in prefixes {
        match catalog.fetch(prefix).and_then(|kernel| Ok((kernel, catalog.busybox()?))) {
            Ok((kernel, busybox)) => {
                found.get_or_insert_with(|| (Vec::new(), busybox)).0.push(kernel);
            }
            Err(error) => tried.skip(machine, prefix, &format!("such a kernel ({error:#})")),
        }
    }
    found
}

/// Boots the kernels, some at a time; prints each one's output when it has ended.
fn boot_all(due: &[Due], limit: Duration, tried: &mut Tried) -> Result<()> {
    let boots = parallel::map(AT_A_TIME, due, |Due { machine, kernel, image }| {
        let booted = boot::boot(machine, &kernel.image, image, limit)?;
        let output = booted.output.trim_end().replace('\n', "\n   ");
        println!("-- Linux {}\n   {output}", kernel.version);
        Ok(booted)
    })?;
    for (Due { kernel, .. }, booted) in due.iter().zip(&boots) {
        tried.end(&kernel.version, booted);
    }
    Ok(())
}

/// What runs on a machine, whatever its kernel.
struct Guest {
    machine: &'static Machine,
    image: Image,
    /// `None` where another program runs in place of the agent.
    proofs: Option<(Proofs, ByLibrary)>,
}

impl Guest {
    fn build(machine: &'static Machine, busybox: &Path, request: &Request) -> Result<Self> {
        if let Some(program) = &request.program {
            let program = program.canonicalize().context("the program to run in the guest")?;
            let image = initramfs::build(machine, busybox, &program, None)?;
            return Ok(Self { machine, image, proofs: None });
        }
        compile::setup_toolchain()?;
        let (target, programs) = match machine.cross() {
            None => (place::target("debug"), compile::all()?),
            Some(cross) => {
                let libraries = LIBRARIES.iter().map(|library| library.name);
                let packages = ["gpuwho", "gpuwho-fake-nccl"].into_iter().chain(libraries);
                (cross.target(), cross.test_programs(&packages.collect::<Vec<_>>())?)
            }
        };
        let proofs = Proofs::ask()?;
        let tests = proofs.by_library(machine)?;
        let program = |(library, _): &(&'static Library, _)| {
            let name = library.program();
            let built = programs.iter().find(|program| program.name == name);
            let built = built.with_context(|| format!("cargo names no test program {name}"))?;
            Ok((built.path.clone(), library.place))
        };
        let beside = ["nccl-rank", "libnccl.so"].map(|name| target.join(name)).to_vec();
        let packed = Tests { programs: tests.iter().map(program).collect::<Result<_>>()?, beside };
        let image = initramfs::build(machine, busybox, &target.join("gpuwho"), Some(&packed))?;
        Ok(Self { machine, image, proofs: Some((proofs, tests)) })
    }

    /// What is checked in a kernel, one after the other.
    fn checks(&self, request: &Request, kernel: &Kernel) -> Vec<Check> {
        let Some((proofs, tests)) = &self.proofs else {
            let args = request.args.clone();
            return vec![Check { name: "program".into(), program: PROGRAM, args, idle: None }];
        };
        let is_here = |test: &&Vec<String>| {
            let needs_trampolines = test.iter().any(|word| word == "fexit");
            !needs_trampolines || self.machine.has_trampolines(&kernel.version)
        };
        let self_tests = proofs.self_tests.iter().filter(is_here).map(|test| Check {
            name: test.last().cloned().unwrap_or_default(),
            program: PROGRAM,
            args: std::iter::once("self-test")
                .chain(test.iter().map(String::as_str))
                .map(OsString::from)
                .collect(),
            idle: None,
        });
        let tests = tests.iter().map(|(library, tests)| {
            let options = ["--test-threads=1", "--nocapture"].map(str::to_owned);
            let args = tests.iter().cloned().chain(options).map(OsString::from).collect();
            let idle = Some("needs .*BPF");
            Check { name: library.name.into(), program: library.place, args, idle }
        });
        self_tests.chain(tests).collect()
    }
}

fn print_table(rows: &[Row]) {
    println!("{:<30}{:>8}  {:<10} passed there", "kernel", "seconds", "result");
    for Row { kernel, seconds, result, checks } in rows {
        println!("{}", format!("{kernel:<30}{seconds:>8.1}  {result:<10} {checks}").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::Proofs;

    #[test]
    fn what_the_agent_lists_is_what_a_guest_runs() {
        let list = "bpf --hook fexit\nnccl\ntest ranks_are_counted\n";
        let proofs = Proofs::parse(list).unwrap();
        assert_eq!(proofs.self_tests, [vec!["bpf", "--hook", "fexit"], vec!["nccl"]]);
        assert_eq!(proofs.tests, ["ranks_are_counted"]);
        assert!(Proofs::parse("").is_none(), "no kernel passes with nothing to prove");
    }
}

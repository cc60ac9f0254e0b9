//! Files that a process maps as a collective library.

use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker::libraries::NODE;
use gpuwho_tests::attacker::{self, Running, elf};
use gpuwho_tests::nccl::{Rank, is_probed_here, library};
use gpuwho_tests::or_skip;
use gpuwho_tests::until::until;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::geteuid;
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ChildStdout;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// For a machine under load; the kernel gives up a lease after 45 s.
const WITHIN: Duration = Duration::from_secs(40);
/// How long root's process is watched after the attack: some looks and tries of the agent.
const WATCHED: Duration = Duration::from_secs(6);
/// The agent and the process that reads for it, of what its unit allows (256 MiB).
const MAX_MEMORY_KB: u64 = 160 << 10;
/// Processor time that an attacker may cost in all, in a development build.
const MAX_CPU: Duration = Duration::from_secs(1);

/// An agent, and folders of root's and of everybody.
struct Host {
    agent: Agent,
    folder: TempDir,
}

impl Host {
    fn start() -> Result<Self, &'static str> {
        if !geteuid().is_root() {
            return Err("root, to attach probes");
        }
        is_probed_here()?;
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        for (name, mode) in [("open", 0o777), ("agent", 0o755), ("root", 0o755), ("closed", 0o700)]
        {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::set_permissions(folder.path().join(name), Permissions::from_mode(mode)).unwrap();
        }
        let config = Config {
            interval: Some("500ms".to_owned()),
            nodes: Some(vec![NODE.to_owned()]),
            more: "[nvidia]\nenabled = false\n".to_owned(),
            ..Config::default()
        };
        let agent = Agent::start(&folder.path().join("agent"), &config, None).unwrap();
        Ok(Self { agent, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts an attack with a file of root's; gives it when it says the word.
    fn attack(&self, name: &str, roots: &Path, word: &str) -> Attacker {
        let mut attacker = Attacker::start(name, &self.path("open"), roots);
        assert_eq!(attacker.says(), word);
        attacker
    }

    /// A rank of root's, whose library is found, probed and told of.
    fn counts_a_rank(&self) -> Rank {
        // A file of its own each time.
        let folder = tempfile::tempdir_in(self.path("root")).unwrap().keep();
        let library = library(&folder).unwrap();
        let rank = Rank::holding(Path::new(NODE), &library, &[]).unwrap();
        self.agent.wait_for_log(library.to_str().unwrap(), WITHIN).unwrap();
        rank
    }

    /// Processor time of the thread that looks at libraries.
    fn watched_for(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.agent.pid())).unwrap();
        let of = |task: &Path, name: &str| fs::read_to_string(task.join(name)).unwrap();
        let mut tasks = tasks.map(|task| task.unwrap().path());
        let watch = tasks.find(|task| of(task, "comm").trim() == "nccl:watch").unwrap();
        let stat = of(&watch, "stat");
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(10 * ticks)
    }

    /// The most memory that the agent and its children have had, each.
    fn memory_kb(&self) -> Vec<u64> {
        let pid = self.agent.pid();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).ok();
        let children: String = tasks.filter_map(of).collect();
        let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        [pid].into_iter().chain(pids).filter_map(peak_kb).collect()
    }

    /// The reason that the source gives.
    fn reason(&self) -> String {
        let who = self.agent.who().unwrap_or_default();
        let sources = who["sources"].as_array().cloned().unwrap_or_default();
        let nccl = sources.iter().find(|source| source["name"] == "nccl");
        nccl.map(|source| source["reason"].as_str().unwrap_or_default().to_owned())
            .unwrap_or_default()
    }
}

fn peak_kb(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.split_ascii_whitespace().next()?.parse().ok()
}

/// A process that attacks; ended when dropped.
struct Attacker {
    child: Running,
    output: BufReader<ChildStdout>,
}

impl Attacker {
    fn start(name: &str, folder: &Path, roots: &Path) -> Self {
        let arguments = [folder.to_str().unwrap(), roots.to_str().unwrap()];
        let mut child = Running::start(&mut attacker::command(name, &arguments).unwrap()).unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn says(&mut self) -> String {
        let mut said = String::new();
        self.output.read_line(&mut said).unwrap();
        said.trim_end().to_owned()
    }

    /// What the function of root's process returns.
    fn returns(&mut self) -> String {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
        self.says()
    }
}

#[test]
fn a_mapping_that_is_swapped_while_the_agent_looks_never_leads_a_probe_into_roots_library() {
    let host = or_skip!(Host::start());
    let roots = host.path("root").join("libroot.so");
    fs::write(&roots, elf::returns_42()).unwrap();
    let mut process = Attacker::start("library-of-root", &host.path("open"), &roots);
    assert_eq!(process.returns(), "42");
    let _attacker = host.attack("swapped-library", &roots, "swapped");
    let other = until(WATCHED, || Some(process.returns()).filter(|returned| returned != "42"));
    assert_eq!(other, None, "root's function returns something else");
    let _rank = host.counts_a_rank();
    assert_eq!(process.returns(), "42");
}

#[test]
fn a_link_where_a_library_was_leads_the_agent_nowhere() {
    let host = or_skip!(Host::start());
    let fifo = host.path("closed").join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _attacker = host.attack("link-to-a-fifo", &fifo, "swapped");
    let _rank = host.counts_a_rank();
}

#[test]
fn leases_on_libraries_keep_the_agent_from_nobody_else() {
    let host = or_skip!(Host::start());
    let _attacker = host.attack("leased-libraries", Path::new("/"), "asked");
    let _rank = host.counts_a_rank();
}

#[test]
fn a_list_of_mappings_of_hundreds_of_megabytes_is_not_read_to_its_end_and_that_is_said() {
    let host = or_skip!(Host::start());
    let _attacker = host.attack("deep-mappings", Path::new("/"), "mapped");
    let reported = || {
        let memory = host.memory_kb();
        assert!(memory.iter().all(|peak| *peak < MAX_MEMORY_KB), "{memory:?} kB");
        Some(host.reason()).filter(|why| why.contains("longer than 32 MiB"))
    };
    assert!(until(WITHIN, reported).is_some(), "{}", host.reason());
    let _rank = host.counts_a_rank();
    println!("peak memory: {:?} kB", host.memory_kb());
}

#[test]
fn a_library_is_kept_open_until_its_last_user_has_ended() {
    let host = or_skip!(Host::start());
    let root = host.path("root");
    let is_open = || {
        let files = fs::read_dir(format!("/proc/{}/fd", host.agent.pid())).unwrap();
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|to| to.starts_with(&root)))
    };
    let rank = host.counts_a_rank();
    assert!(is_open());
    drop(rank);
    let ended = Instant::now();
    assert!(until(WITHIN, || (!is_open()).then_some(())).is_some());
    println!("closed {:?} after its user's end", ended.elapsed());
}

#[test]
fn sparse_libraries_cost_a_bounded_time_and_keep_nobody_waiting() {
    let host = or_skip!(Host::start());
    // Loads the programs.
    let rank = host.counts_a_rank();
    drop(rank);
    let before = host.watched_for();
    let spent = || host.watched_for().saturating_sub(before);
    let _attacker = host.attack("sparse-libraries", Path::new("/"), "mapped");
    let _rank = host.counts_a_rank();
    // Looks at what is left over.
    let most = until(WATCHED, || Some(spent()).filter(|spent| *spent > MAX_CPU));
    println!("processor time: {:?}", spent());
    assert_eq!(most, None);
}

#[test]
fn libraries_behind_thirty_thousand_mounts_are_refused_and_keep_nobody_waiting() {
    let host = or_skip!(Host::start());
    // Loads the programs.
    drop(host.counts_a_rank());
    let before = host.watched_for();
    let spent = || host.watched_for().saturating_sub(before);
    let began = Instant::now();
    let _attacker = host.attack("behind-mounts", Path::new("/"), "mapped");
    println!("mounted in {:?}", began.elapsed());
    let refused = host.agent.wait_for_log("(unknown) may never answer", WITHIN).unwrap();
    assert!(refused.contains("libnccl"), "{refused}");
    let _rank = host.counts_a_rank();
    let who = host.agent.who().unwrap();
    let mut sources = who["sources"].as_array().unwrap().iter();
    assert!(sources.all(|source| source["state"] != "hung"), "{who:#}");
    let most = until(WATCHED, || Some(spent()).filter(|spent| *spent > MAX_CPU));
    println!("processor time: {:?}", spent());
    assert_eq!(most, None);
}

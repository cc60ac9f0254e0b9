use super::quiet::{NO_SERVER, Others};
use super::*;
use gpuwho_owners::attribute::Evidence;
use gpuwho_owners::attribute::fake::{FakeHost, opened};
use std::fs;

#[test]
fn what_is_no_server_is_looked_at_again_once_it_runs_or_calls_itself_something_else() {
    let host = FakeHost::new();
    let process = ProcKey { pid: 7, start_ticks: 100 };
    host.start(process, "python3", "0::/\n");
    let ownership = Ownership::new(&host.paths);
    let settings = Settings::resolve(<_>::default()).unwrap();
    let mut finder = Finder::new(&TenantFiles::direct(&host.paths), &ownership, &settings);
    let now = Instant::now();
    let living = || Living::find(&host.paths, 7).unwrap();
    finder.others.add(&living(), now);
    let mut is_still = |later| finder.others.0[&process].is_still(&living(), now + later);
    assert_eq!([Duration::ZERO, NO_SERVER].map(&mut is_still), [true, false]);
    let stat = fs::read_to_string(host.paths.proc.join("7/stat")).unwrap();
    let mut fields: Vec<&str> = stat.split(' ').collect();
    fields[47] = "4711";
    for other in [stat.replace("python3", "VLLM::APIServer"), fields.join(" ")] {
        host.write(process, "stat", other);
        assert!(!is_still(Duration::ZERO));
    }
}

/// The group's directory.
const GROUP: &str = "/system.slice/cron.service";

fn key(pid: u32) -> ProcKey {
    ProcKey { pid, start_ticks: 100 }
}

/// A process of the group that is vLLM's server on port 8000 of a network of its own, with so many
/// other descriptors.
fn start(host: &FakeHost, pid: u32, uid: u32, descriptors: u32) {
    host.start(key(pid), "VLLM::APIServer", &format!("0::{GROUP}\n"));
    host.write(key(pid), "status", format!("Tgid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"));
    host.write(key(pid), "cmdline", "VLLM::APIServer\0");
    let folder = host.paths.proc.join(pid.to_string());
    for name in ["fd", "net", "ns"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    fs::write(folder.join("ns/net"), "").unwrap();
    for inode in 0..=descriptors {
        let to = format!("socket:[{}]", 1_000 * pid + inode);
        std::os::unix::fs::symlink(to, folder.join(format!("fd/{inode}"))).unwrap();
    }
    let inode = 1_000 * pid;
    let line = format!("0: 0100007F:1F40 00000000:0000 0A 0:0 00:0 0 0 0 {inode} 1\n");
    fs::write(folder.join("net/tcp"), format!("heading\n{line}")).unwrap();
}

/// A finder on a host whose group has these processes, of which some hold a device.
fn finder(
    host: &FakeHost,
    members: &[u32],
    holders: &[u32],
) -> (Finder, Vec<Arc<ProcessAttribution>>) {
    let cgroup = host.paths.cgroup.join(GROUP.trim_start_matches('/'));
    fs::create_dir_all(&cgroup).unwrap();
    let members: Vec<String> = members.iter().map(ToString::to_string).collect();
    fs::write(cgroup.join("cgroup.procs"), members.join("\n") + "\n").unwrap();
    let ownership = Ownership::new(&host.paths);
    let settings = Settings::resolve(<_>::default()).unwrap();
    let finder = Finder::new(&TenantFiles::direct(&host.paths), &ownership, &settings);
    for pid in holders {
        ownership.observe(Evidence::Opened(opened(key(*pid), 1, 1_000_000_000)));
    }
    let holders = holders.iter().map(|pid| ownership.attribution(key(*pid)).unwrap());
    (finder, holders.collect())
}

fn pids(servers: &[Server]) -> Vec<u32> {
    servers.iter().map(|server| server.process.pid).collect()
}

#[test]
fn a_server_is_joined_with_its_own_users_holders_only() {
    let host = FakeHost::new();
    start(&host, 10, 65_533, 0);
    fs::remove_dir_all(host.paths.proc.join("10/fd")).unwrap();
    start(&host, 11, 65_534, 0);
    let look = |holders: &[u32]| {
        let (mut finder, holders) = finder(&host, &[10, 11], holders);
        let group = Group::Cgroup(GROUP.into());
        let now = Instant::now();
        let mut budget = Budget { time: Duration::MAX, ..Budget::new() };
        finder.look((&group, &holders), <_>::default(), now, &mut budget).servers
    };
    // Another user of the same cgroup holds the device.
    assert_eq!(pids(&look(&[10])), [0; 0]);
    // The server's user does: it is its own.
    let found = look(&[10, 11]);
    assert_eq!(pids(&found), [11]);
    assert_eq!((found[0].owner.process, &*found[0].holders), (key(11), &[key(11)][..]));
    host.write(key(11), "status", "Tgid:\t11\nUid:\t65533\t0\t0\t0\n");
    let found = look(&[10]);
    assert_eq!((pids(&found), &*found[0].holders), (vec![11], &[key(10)][..]));
}

#[test]
fn a_look_ends_within_its_budget_and_the_next_goes_on() {
    let host = FakeHost::new();
    let members: Vec<u32> = (10..16).collect();
    for pid in &members {
        start(&host, *pid, 1000, 100);
    }
    let (mut finder, holders) = finder(&host, &members, &[10]);
    let group = Group::Cgroup(GROUP.into());
    let mut known = (Vec::new(), None);
    let mut found = Vec::new();
    for _ in 0..4 {
        let time = Duration::MAX;
        let mut budget = Budget { entries: Allowance::new(250, None), time };
        let look = finder.look((&group, &holders), known, Instant::now(), &mut budget);
        known = (look.servers, look.goes_on);
        found.push((known.0.len(), known.1));
    }
    // Two fit; the third one is looked at again.
    assert_eq!(found, [(2, Some(12)), (4, Some(14)), (6, None), (6, Some(12))]);
    // One whose time is over looks at one process.
    let mut budget = Budget { time: Duration::ZERO, ..Budget::new() };
    let look = finder.look((&group, &holders), <_>::default(), Instant::now(), &mut budget);
    assert_eq!(look.goes_on, Some(11));
}

#[test]
fn a_group_without_servers_is_not_looked_at_while_it_has_the_same_processes() {
    let host = FakeHost::new();
    for pid in [10, 11] {
        host.start(key(pid), "train", &format!("0::{GROUP}\n"));
        host.write(key(pid), "cmdline", "train\0");
    }
    let (mut finder, holders) = finder(&host, &[10, 11], &[10]);
    let group = Group::Cgroup(GROUP.into());
    let now = Instant::now();
    let look = finder.look((&group, &holders), <_>::default(), now, &mut Budget::new());
    let quiet = look.quiet.expect("none of them is a server");
    let lasts = |quiet: &Quiet, later| quiet.lasts(&holders, now + later);
    assert_eq!([Duration::ZERO, quiet::FIRST].map(|later| lasts(&quiet, later)), [true, false]);
    let again =
        || Quiet { length: quiet::FIRST, members: quiet.members.clone(), cgroup: None, ..quiet };
    let longer = again().after(Some(&quiet));
    assert_eq!((again().after(None).length, longer.length), (quiet::FIRST, quiet::FIRST * 2));
    assert_eq!((0..9).fold(longer, |quiet, _| again().after(Some(&quiet))).length, NO_SERVER);
    let procs = quiet.cgroup.as_ref().unwrap().join("cgroup.procs");
    fs::write(procs, "10\n11\n12\n").unwrap();
    assert!(!lasts(&quiet, Duration::ZERO), "another process");
    // One that cannot be read may be a server.
    let look = finder.look((&group, &holders), <_>::default(), now, &mut Budget::new());
    assert!(look.quiet.is_none());
}

#[test]
fn a_new_fork_of_what_is_no_server_is_none_until_it_differs() {
    let host = FakeHost::new();
    // PF_FORKNOEXEC, and the address of the arguments.
    let start = |pid, comm: &str, flags, arguments_at: &str| {
        host.start(key(pid), comm, &format!("0::{GROUP}\n"));
        host.rewrite_stat(key(pid), 'S', flags);
        let stat = fs::read_to_string(host.paths.proc.join(format!("{pid}/stat"))).unwrap();
        let mut fields: Vec<&str> = stat.split(' ').collect();
        fields[47] = arguments_at;
        host.write(key(pid), "stat", fields.join(" "));
        Living::find(&host.paths, pid).unwrap()
    };
    let (mut others, now) = (Others::default(), Instant::now());
    let parent = start(10, "train", 0, "4711");
    let fork = start(11, "train", 0x40, "4711");
    assert!(!others.knows(&fork, Some(&parent), now), "its parent is not known");
    others.add(&parent, now);
    assert!(others.knows(&fork, Some(&parent), now));
    for (comm, flags, arguments_at) in
        [("VLLM::Worker", 0x40, "4711"), ("train", 0, "4711"), ("train", 0x40, "4712")]
    {
        let another = start(12, comm, flags, arguments_at);
        assert!(!others.knows(&another, Some(&parent), now), "{comm} {flags} {arguments_at}");
    }
    // Later it is looked at itself: it may have written over its arguments.
    others.add(&parent, now + NO_SERVER);
    assert!(!others.knows(&fork, Some(&parent), now + NO_SERVER));
}

#[test]
fn without_an_engine_nothing_is_looked_at_until_a_look_is_due_or_holders_change() {
    let host = FakeHost::new();
    host.start(key(10), "train", &format!("0::{GROUP}\n"));
    host.write(key(10), "cmdline", "train\0");
    let (mut finder, _) = finder(&host, &[10], &[]);
    let now = Instant::now();
    assert_eq!(pids(&finder.find(now)), [0; 0]);
    assert!(finder.rests.is_some_and(|(_, until)| until == now + SELDOM), "nobody holds a device");
    finder.ownership.observe(Evidence::Opened(opened(key(10), 1, 1_000_000_000)));
    assert_eq!(pids(&finder.find(now)), [0; 0]);
    let (version, until) = finder.rests.unwrap();
    assert_eq!(until, now + SOON, "the group's second look");
    // A group that is thrown away here is not looked at again before that.
    finder.groups.clear();
    finder.find(now + SOON / 2);
    assert_eq!((finder.groups.len(), finder.rests), (0, Some((version, until))));
    finder.find(until);
    assert_eq!(finder.groups.len(), 1);
}

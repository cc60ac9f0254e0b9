use super::*;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::attribute::Evidence;
use gpuwho_owners::attribute::fake::{FakeHost, opened};
use gpuwho_owners::attribute::ownership::Ownership;
use std::fs;

/// The inode of the accepted socket.
const INODE: u32 = 4_711;

fn key(pid: u32) -> ProcKey {
    ProcKey { pid, start_ticks: 100 }
}

/// A process of the server's cgroup with descriptors of these sockets.
fn start(host: &FakeHost, (pid, parent, uid): (u32, u32, u32), sockets: impl Iterator<Item = u32>) {
    host.start(key(pid), "vllm", "0::/\n");
    host.set_parent(key(pid), parent);
    host.write(key(pid), "status", format!("Tgid:\t{pid}\nUid:\t{uid}\t0\t0\t0\n"));
    let folder = host.paths.proc.join(pid.to_string());
    fs::create_dir_all(folder.join("fd")).unwrap();
    for (at, inode) in sockets.enumerate() {
        let to = format!("socket:[{inode}]");
        std::os::unix::fs::symlink(to, folder.join(format!("fd/{at}"))).unwrap();
    }
    fs::create_dir_all(folder.join("net")).unwrap();
    let line = format!("0: 0100007F:1F40 0100007F:9C40 01 0:0 00:0 0 0 0 {INODE} 1\n");
    fs::write(folder.join("net/tcp"), format!("heading\n{line}")).unwrap();
}

/// Whether the server, process 10, has accepted the connection.
fn accepts(host: &FakeHost, members: &[u32], looks: &Allowance) -> Option<bool> {
    let cgroup = host.paths.cgroup.join("engine");
    fs::create_dir_all(&cgroup).unwrap();
    let members: Vec<String> = members.iter().map(ToString::to_string).collect();
    fs::write(cgroup.join("cgroup.procs"), members.join("\n") + "\n").unwrap();
    let ownership = Ownership::new(&host.paths);
    ownership.observe(Evidence::Opened(opened(key(10), 1, 1_000_000_000)));
    let server = Server {
        engine: None,
        annotated: None,
        process: key(10),
        network: 1,
        at: ([127, 0, 0, 1], 8000).into(),
        cgroup: Some(cgroup),
        owner: ownership.attribution(key(10)).unwrap(),
        holders: Vec::new(),
    };
    let ends = (([127, 0, 0, 1], 8000).into(), ([127, 0, 0, 1], 40_000).into());
    has_accepted(&host.paths, &server, ends, looks)
}

#[test]
fn who_accepts_is_of_the_servers_cgroup_and_user() {
    let host = FakeHost::new();
    start(&host, (10, 1, 1000), 0..3);
    start(&host, (11, 10, 1000), INODE..=INODE);
    start(&host, (12, 10, 65_534), INODE..=INODE);
    let accepts = |members: &[u32]| accepts(&host, members, &Allowance::default());
    assert_eq!(accepts(&[10, 11]), Some(true));
    assert_eq!(accepts(&[10, 12]), Some(false), "another user of the same cgroup");
    assert_eq!(accepts(&[10]), Some(false), "of no cgroup of the server's");
}

#[test]
fn the_servers_nearest_are_looked_at_first_and_no_more_than_is_allowed() {
    let host = FakeHost::new();
    start(&host, (10, 1, 1000), 0..3);
    // Ten with many sockets each, and one that the server has started since.
    let others: Vec<u32> = (20..30).collect();
    for pid in &others {
        start(&host, (*pid, 7, 1000), 0..400);
    }
    start(&host, (40, 10, 1000), INODE..=INODE);
    let all = [&[10][..], &others, &[40]].concat();
    assert_eq!(accepts(&host, &all, &Allowance::new(500, None)), Some(true));
    let looks = Allowance::new(500, None);
    assert_eq!(accepts(&host, &all[..11], &looks), Some(false));
    assert!(looks.is_used_up());
}

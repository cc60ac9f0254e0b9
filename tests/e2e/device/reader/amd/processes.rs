//! Which of KFD's files of processes are read, and when what they say is found.

use super::{Rig, processes, values};
use gpuwho_devices::wire::{Outcome, Reading};
use gpuwho_devices::{DeviceRead, OpenLibrary};
use gpuwho_tests::amd::{self, On};

/// Readings in which each file of a process without memory is read once, as the reader documents.
const ROUND: usize = 32;

/// Both boards in eight partitions each, with a process on each partition.
fn crowded() -> Rig {
    let rig = Rig::new("mi300x2-cpx");
    for (pid, render) in (1000..).zip(128..144) {
        rig.tree.compute(&On { pid, render, bytes: 1 << 30 }).unwrap();
    }
    rig
}

/// The second board has 7 MiB more in use.
fn more_in_use(rig: &Rig) {
    let used = rig.at(1).join("mem_info_vram_used");
    let before: u64 = std::fs::read_to_string(&used).unwrap().trim().parse().unwrap();
    std::fs::write(&used, (before + (7 << 20)).to_string()).unwrap();
}

/// The partitions of a process on the second board.
fn on_second(reading: &Reading, pid: u32) -> Vec<(Option<u32>, String)> {
    let all = processes(reading).into_iter().filter(|(on, ..)| *on == pid);
    all.map(|(_, part, bytes)| (part, bytes)).collect()
}

#[test]
fn files_of_processes_without_memory_are_read_in_turns() {
    let rig = crowded();
    let mut device = rig.device(1);
    let first = device.read(&[]);
    let next: Vec<_> = (0..ROUND).map(|_| device.read(&[])).collect();
    for reading in &next {
        assert_eq!(processes(reading), processes(&first), "what has memory is in each reading");
    }
    let most = |all: &[Reading]| all.iter().map(|reading| reading.cost.calls).max().unwrap();
    // Of 128 files 8 have memory, and 16 are read in a turn after the memory in use has grown, else fewer.
    assert!(most(&next) + 80 < first.cost.calls, "{} of {}", most(&next), first.cost.calls);
    let empty = Rig::new("mi300x2-cpx");
    let mut alone = empty.device(1);
    alone.read(&[]);
    let alone: Vec<_> = (0..ROUND).map(|_| alone.read(&[])).collect();
    // A look at each of sixteen processes, and three files for each of the eight on this board.
    let more = most(&next) - most(&alone);
    assert!(more <= 16 + 8 * 3 + 16, "{more}");
    more_in_use(&rig);
    let grown: Vec<_> = (0..ROUND).map(|_| device.read(&[])).collect();
    assert_eq!(most(&grown), most(&next) + 14);
}

#[test]
fn memory_that_a_process_takes_later_is_found_within_a_round() {
    let rig = crowded();
    let mut device = rig.device(1);
    device.read(&[]);
    // Its first memory on this board, on the last partition, and no queue.
    rig.tree.compute(&On { pid: 1000, render: 143, bytes: 7 << 20 }).unwrap();
    more_in_use(&rig);
    let mut readings = (0..ROUND).map(|_| device.read(&[]));
    let found = readings.find(|reading| !on_second(reading, 1000).is_empty());
    let expected = [(Some(7), "compute 7340032".to_owned())];
    assert_eq!(on_second(&found.expect("not in a round"), 1000), expected);
    assert_eq!(on_second(&device.read(&[]), 1000), expected, "from then on in each");
    rig.tree.compute(&On { pid: 1000, render: 143, bytes: 0 }).unwrap();
    assert_eq!(on_second(&device.read(&[]), 1000), [], "freed memory is gone at once");
}

#[test]
fn a_process_that_makes_a_queue_is_found_at_the_next_reading() {
    let rig = crowded();
    let mut device = rig.device(1);
    device.read(&[]);
    let queue = |number: u32, render: u32| {
        let id = amd::FIRST_ID + render - amd::FIRST_RENDER;
        let file = format!("sys/class/kfd/kfd/proc/1000/queues/{number}/gpuid");
        rig.tree.write(&file, &id.to_string()).unwrap();
    };
    queue(0, 128);
    assert_eq!(on_second(&device.read(&[]), 1000), [], "its queue is on the other board");
    rig.tree.compute(&On { pid: 1000, render: 137, bytes: 1 << 20 }).unwrap();
    queue(1, 137);
    queue(2, 138);
    let expected = [(1, "compute 1048576"), (2, "compute 0")];
    let expected = expected.map(|(part, bytes)| (Some(part), bytes.to_owned()));
    assert_eq!(on_second(&device.read(&[]), 1000), expected);
}

#[test]
fn a_process_that_ends_disappears_and_a_new_one_is_read_whole() {
    let rig = crowded();
    let mut opened = rig.open();
    let read = |opened: &mut OpenLibrary| {
        opened.devices.iter_mut().map(|device| device.read(&[])).collect::<Vec<_>>()
    };
    read(&mut opened);
    rig.tree.end(1015).unwrap();
    rig.tree.compute(&On { pid: 2000, render: 143, bytes: 3 << 20 }).unwrap();
    // The list is one for both boards, and a new one in each tick.
    let readings = read(&mut opened);
    assert_eq!(on_second(&readings[1], 1015), []);
    assert_eq!(on_second(&readings[1], 2000), [(Some(7), "compute 3145728".to_owned())]);
    let count = |reading: &Reading| values(&reading.values)[&("gpu.process.count", String::new())];
    assert_eq!((count(&readings[0]), count(&readings[1])), (8.0, 8.0));
    // Its number is another process's now: the list is all that names it.
    rig.tree.end(2000).unwrap();
    rig.tree.compute(&On { pid: 2000, render: 128, bytes: 9 << 20 }).unwrap();
    let readings = read(&mut opened);
    assert_eq!(on_second(&readings[1], 2000), []);
}

#[test]
fn a_board_whose_partitions_change_forgets_which_files_had_memory() {
    let rig = crowded();
    let mut device = rig.device(1);
    device.read(&[]);
    rig.tree.compute(&On { pid: 1000, render: 143, bytes: 7 << 20 }).unwrap();
    rig.tree.write("sys/class/kfd/kfd/topology/generation_id", "3").unwrap();
    assert_eq!(on_second(&device.read(&[]), 1000), [(Some(7), "compute 7340032".to_owned())]);
    // Gone between listing and reading: nothing of it is left.
    let folder = rig.at(1);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(device.read(&[]).outcome, Outcome::Lost(_) | Outcome::Failing(_)));
}

#[test]
fn a_process_s_files_stay_open_and_say_what_they_say_now() {
    let rig = crowded();
    let mut device = rig.device(1);
    let on = On { pid: 1015, render: 143, bytes: 5 << 20 };
    let numbers = |device: &mut Box<dyn DeviceRead>| {
        let reading = device.read(&[]);
        let own = reading.processes.iter().filter(|on| on.pid == 1015);
        values(&own.map(|on| on.value).collect::<Vec<_>>()).into_values().collect::<Vec<_>>()
    };
    rig.tree.statistics(&on, 19, 1500).unwrap();
    assert_eq!(numbers(&mut device), [1.5, (1_u64 << 30) as f64, 0.5]);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let own = || open().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let own = || {
        own().filter(|path| path.starts_with(rig.folder.path()) && path.iter().any(|n| n == "1015"))
    };
    assert_eq!(own().count(), 3);
    rig.tree.compute(&on).unwrap();
    rig.tree.statistics(&on, 38, 2500).unwrap();
    assert_eq!(numbers(&mut device), [2.5, (5_u64 << 20) as f64, 1.0]);
    rig.tree.end(1015).unwrap();
    assert_eq!(numbers(&mut device), [0.0; 0]);
    assert_eq!(own().count(), 0, "closed with the process");
}

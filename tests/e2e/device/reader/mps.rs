//! MPS: clients and their server, each counted once; and a process on several lists.

use super::rig::{Key, Rig, Values};
use super::truth;
use crate::fixture::MpsServer;

fn memory_of(read: &Values) -> Values {
    let is_memory = |(name, ..): &Key| name == "gpu.process.memory.usage";
    read.iter().filter(|(key, _)| is_memory(key)).map(|(key, v)| (key.clone(), *v)).collect()
}

#[test]
fn clients_are_counted_once_and_the_server_is_marked() {
    let server = MpsServer::start();
    let mut rig = Rig::new("mps");
    let pids: Vec<u32> = [server.pid()].into_iter().chain((1..4).map(|s| rig.pid(0, s))).collect();
    rig.write_pids(0, &pids);
    let read = rig.tick();
    let bound = |device, slot| match (device, slot) {
        (0, 0) => server.pid(),
        _ => rig.pid(device, slot),
    };
    let mut expected = memory_of(&truth::of(&rig.scenario(), bound));
    let (name, device, pid, _) = expected.keys().find(|key| key.2 == server.pid()).unwrap().clone();
    let own = expected.remove(&(name.clone(), device, pid, "compute".to_owned())).unwrap();
    expected.insert((name, device, pid, "mps_server".to_owned()), own);
    assert_eq!(memory_of(&read), expected);
    let kinds: Vec<&str> = expected.keys().map(|(.., kind)| kind.as_str()).collect();
    let mps = kinds.iter().filter(|kind| **kind == "mps").count();
    assert_eq!((mps, kinds.len()), (3, 6), "{kinds:?}");
    assert_eq!(read[&("gpu.process.count".to_owned(), 0, 0, String::new())], 4.0);
    let snapshot = rig.reader.control().snapshot().devices.remove(0);
    let shown: Vec<_> = snapshot.processes.iter().map(|p| (p.pid, p.memory)).collect();
    assert_eq!(shown.len(), 4, "{shown:?}");
}

#[test]
fn a_process_with_compute_and_graphics_contexts_is_counted_once() {
    let mut rig = Rig::new("mps");
    let read = memory_of(&rig.tick());
    let of_both: Vec<_> = read
        .iter()
        .filter(|((_, device, pid, _), _)| (*device, *pid) == (1, rig.pid(1, 1)))
        .collect();
    let key = ("gpu.process.memory.usage".to_owned(), 1, rig.pid(1, 1), "compute".to_owned());
    assert_eq!(of_both, [(&key, &f64::from(1500 << 20))]);
}

#[test]
fn the_mps_list_is_asked_for_only_where_there_is_a_server() {
    let list = "nvmlDeviceGetMPSComputeRunningProcesses_v3";
    let mut rig = Rig::new("mps");
    rig.tick();
    assert_eq!(rig.calls(list), 0, "a list costs milliseconds");
    let server = MpsServer::start();
    rig.write_pids(0, &[server.pid(), rig.pid(0, 1)]);
    rig.tick();
    rig.tick();
    assert_eq!(rig.calls(list), 2, "on the device with the server");
}

/// The graphics list is seldom read while it is empty, but a process that has used the device is on it.
#[test]
fn a_graphics_process_has_its_memory_in_the_reading_that_first_shows_its_use() {
    let mut rig = Rig::new("a10x1");
    let mut whole = String::new();
    rig.edit(|text| {
        let text = text.replace("file:compute", "file:gpu0");
        let text = text.replace("\"file:graphics\"", "\"file:gpu0\"\nfirst_slot = 1");
        whole.clone_from(&text);
        text[..text.rfind("[[device.process]]").unwrap()].to_owned()
    });
    rig.tick();
    rig.edit(|_| whole);
    let pid = rig.pid(0, 1);
    let of = |read: &Values, name: &str| {
        read.iter().find(|(key, _)| key.0 == name && key.2 == pid).map(|(_, value)| *value)
    };
    let memory = rig.until(|batch, rig| {
        let read = rig.values(batch);
        of(&read, "gpu.process.utilization")?;
        Some(of(&read, "gpu.process.memory.usage"))
    });
    assert_eq!(memory, Some(268_435_456.0));
}

//! One tenant that takes series, files, log lines or events from the others.

use super::{Attack, become_nobody};
use crate::worker::act::join;
use crate::worker::nodes::open_node;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// The attacks, by name. Arguments: a folder that everybody may write to, then the directories of
/// the tenant's cgroup.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "all-series", run: all_series },
    Attack { name: "all-files", run: all_files },
    Attack { name: "renames", run: renames },
    Attack { name: "many-processes", run: many_processes },
];

/// The node in the folder that stands for a GPU's.
const NODE: &str = "gpu";
/// Operations as the Inspector writes them.
const OPERATIONS: [&str; 5] = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"];
/// Between two pieces of what a rank writes: a reading takes what came since the last.
const PACE: Duration = Duration::from_millis(100);

/// Ranks, operations and sizes without end.
fn all_series(arguments: &[String]) -> io::Result<()> {
    let (folder, _node) = begin(arguments)?;
    let mut file = records(folder, "")?;
    ready()?;
    let all = (0..64_u64)
        .flat_map(|rank| (0..7_u32).flat_map(move |size| (0..5).map(move |op| (rank, size, op))));
    for (number, (rank, size, operation)) in all.cycle().enumerate() {
        let bytes = 2048_u64 << (4 * size);
        let name = OPERATIONS.get(operation).copied().unwrap_or_default();
        write_record(&mut file, (rank, "same"), name, bytes)?;
        if number % 64 == 0 {
            thread::sleep(PACE);
        }
    }
    Ok(())
}

/// A hundred files of each of twenty processes.
fn all_files(arguments: &[String]) -> io::Result<()> {
    crowd(arguments, 20, 100)
}

/// One file of each of a hundred processes.
fn many_processes(arguments: &[String]) -> io::Result<()> {
    crowd(arguments, 100, 1)
}

/// One rank, with another name in each record.
fn renames(arguments: &[String]) -> io::Result<()> {
    let (folder, _node) = begin(arguments)?;
    let mut file = records(folder, "")?;
    ready()?;
    for number in 0_u64.. {
        write_record(&mut file, (0, &format!("name {number}")), "AllReduce", 1 << 20)?;
        thread::sleep(PACE);
    }
    Ok(())
}

/// Shells that hold the node and their files, as so many processes of the tenant's.
fn crowd(arguments: &[String], processes: usize, files: usize) -> io::Result<()> {
    let (folder, _node) = begin(arguments)?;
    let script = format!(
        "exec 9<\"$1/{NODE}\"; for n in $(seq {files}); do exec {{fd}}>>\"$1/node$n-pid$$.log\"; done; \
         echo ready; read -r end"
    );
    let start = |_| {
        let mut shell = Command::new("bash");
        shell.args(["-c", &script, "bash"]).arg(folder);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    };
    let mut crowd = (0..processes).map(start).collect::<io::Result<Vec<Child>>>()?;
    for shell in &mut crowd {
        let mut said = [0; 6];
        shell.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?.read_exact(&mut said)?;
    }
    ready()?;
    // Until whoever started the attack ends it; then the shells' input ends as well.
    io::stdin().read_to_end(&mut Vec::new())?;
    for mut shell in crowd {
        kill_process(Pid::from_child(&shell), Signal::KILL)?;
        shell.wait()?;
    }
    Ok(())
}

/// Becomes the tenant in its group; gives the folder and the open node.
pub(super) fn begin(arguments: &[String]) -> io::Result<(&Path, File)> {
    let (folder, groups) = arguments.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    join(groups)?;
    become_nobody()?;
    let folder = Path::new(folder);
    let node = File::from(open_node(&folder.join(NODE))?);
    Ok((folder, node))
}

/// A file as the Inspector makes one.
fn records(folder: &Path, more: &str) -> io::Result<File> {
    let path = folder.join(format!("node{more}-pid{}.log", std::process::id()));
    OpenOptions::new().append(true).create(true).open(path)
}

fn write_record(
    file: &mut File,
    (rank, name): (u64, &str),
    operation: &str,
    bytes: u64,
) -> io::Result<()> {
    let pid = std::process::id();
    let line = format!(
        "{{\"header\":{{\"id\":\"0x1db14a8a713c2f\",\"rank\":{rank},\"n_ranks\":64,\"nnodes\":1,\
         \"comm_name\":\"{name}\"}},\"metadata\":{{\"inspector_output_format_version\":\"v4.0\",\
         \"git_rev\":\"x\",\"rec_mechanism\":\"nccl_profiler_interface\",\
         \"dump_timestamp_us\":1795255356002399,\"hostname\":\"vm\",\"pid\":{pid}}},\
         \"coll_perf\":{{\"coll\":\"{operation}\",\"coll_sn\":0,\"coll_msg_size_bytes\":{bytes},\
         \"coll_exec_time_us\":602,\"coll_timing_source\":\"kernel_gpu\",\
         \"coll_algobw_gbs\":3.48,\"coll_busbw_gbs\":6.09}}}}\n"
    );
    file.write_all(line.as_bytes())
}

fn ready() -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(b"ready\n")?;
    out.flush()
}

//! Claims about others: forged owners, names that hide a process, and the control socket.

use super::{Attack, NOBODY, become_nobody};
use crate::worker::act::{become_user, join};
use crate::worker::nodes::{open_gpus, private_dev};
use crate::worker::script::Script;
use std::env::set_current_dir;
use std::ffi::CString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "claims-hold", run: hold },
    Attack { name: "claims-silent", run: silent },
    Attack { name: "claims-slow", run: slow },
    Attack { name: "claims-ask", run: ask },
];

/// Holds a GPU in cgroups that it makes and names itself: `GPU NAME-IN-HEX PATH DIRECTORY…`, the
/// directories being delegated to it before it gives root up.
fn hold(arguments: &[String]) -> io::Result<()> {
    let [gpu, name, path, directories @ ..] = arguments else { return Err(usage()) };
    join(directories)?;
    for directory in directories {
        delegate(Path::new(directory))?;
    }
    private_dev()?;
    become_nobody()?;
    directories.iter().try_for_each(|directory| settle(Path::new(directory), Path::new(path)))?;
    rustix::thread::set_name(&CString::new(bytes(name)?)?)?;
    let gpus = vec![gpu.parse().map_err(|_| usage())?];
    let _open = open_gpus(&Script { gpus, ..Script::default() })?;
    ready()
}

/// As an administrator, systemd or a container's runtime gives a part of the tree away.
fn delegate(directory: &Path) -> io::Result<()> {
    chown(directory, Some(NOBODY), Some(NOBODY))?;
    for file in ["cgroup.procs", "tasks", "cgroup.subtree_control"] {
        match chown(directory.join(file), Some(NOBODY), Some(NOBODY)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Makes the directories of a path below a cgroup and moves there, step by step: the whole path
/// can be longer than the kernel takes at once.
fn settle(outer: &Path, path: &Path) -> io::Result<()> {
    set_current_dir(outer)?;
    for component in path {
        // Without CPUs and memory nodes of its own a cpuset (v1) takes no process.
        let set = ["cpuset.cpus", "cpuset.mems"].map(|file| (file, fs::read(file)));
        fs::create_dir(component)?;
        set_current_dir(component)?;
        for (file, value) in set {
            if let Ok(value) = value {
                fs::write(file, value)?;
            }
        }
    }
    fs::write("cgroup.procs", "0")
}

/// Connects `COUNT` times to `SOCKET` and says nothing; what is hung up on connects again.
fn silent(arguments: &[String]) -> io::Result<()> {
    let [socket, count] = arguments else { return Err(usage()) };
    become_nobody()?;
    let socket = PathBuf::from(socket);
    let count: usize = count.parse().map_err(|_| usage())?;
    let connect = || {
        let stream = UnixStream::connect(&socket)?;
        stream.set_nonblocking(true)?;
        io::Result::Ok(stream)
    };
    let mut open = (0..count).map(|_| connect()).collect::<io::Result<Vec<_>>>()?;
    let socket = socket.clone();
    thread::spawn(move || -> io::Result<()> {
        loop {
            for stream in &mut open {
                let read = stream.read(&mut [0; 64]);
                if read.map_err(|error| error.kind()) != Err(io::ErrorKind::WouldBlock) {
                    *stream = UnixStream::connect(&socket)?;
                    stream.set_nonblocking(true)?;
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
    });
    ready()
}

/// Sends one byte now and then to `SOCKET`, and never a whole request.
fn slow(arguments: &[String]) -> io::Result<()> {
    let [socket] = arguments else { return Err(usage()) };
    become_nobody()?;
    let socket = PathBuf::from(socket);
    let mut stream = UnixStream::connect(&socket)?;
    thread::spawn(move || -> io::Result<()> {
        loop {
            if stream.write_all(b"{").is_err() {
                stream = UnixStream::connect(&socket)?;
            }
            thread::sleep(Duration::from_millis(100));
        }
    });
    ready()
}

/// Becomes `UID`, asks `SOCKET` for `REQUEST` and prints the answer.
fn ask(arguments: &[String]) -> io::Result<()> {
    let [uid, socket, request] = arguments else { return Err(usage()) };
    become_user(Some(uid.parse().map_err(|_| usage())?))?;
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    io::copy(&mut stream, &mut io::stdout())?;
    Ok(())
}

/// Says that it is in place, and stays until whoever started it has enough.
fn ready() -> io::Result<()> {
    println!("ready {}", std::process::id());
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

/// Bytes as two hex digits each: a name of any bytes cannot be an argument.
fn bytes(hex: &str) -> io::Result<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).ok());
    let bytes = digits.map(|pair| u8::from_str_radix(pair?, 16).ok());
    bytes.collect::<Option<_>>().ok_or_else(usage)
}

fn usage() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "wrong arguments")
}

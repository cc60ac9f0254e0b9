//! The library's status socket: the line protocol of its RAS subsystem, with a document that is
//! read from a file for every question. A file that ends in `.json` makes a library of 2.28.7 or
//! later, which knows formats; any other an older one.
//!
//! As in the library the processes of a user share the port, `NCCL_RAS_ADDR` says which, and a
//! second socket on the node's address is for the other processes of the job.

use std::ffi::c_int;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::mem::size_of;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

/// `NCCL_RAS_CLIENT_PORT`.
const PORT: u16 = 28_028;

/// Answers clients until the process ends.
pub fn listen(document: PathBuf) -> io::Result<String> {
    let address = std::env::var("NCCL_RAS_ADDR").ok();
    let port = address.and_then(|at| at.rsplit_once(':')?.1.parse().ok()).unwrap_or(PORT);
    let clients = shared(port)?;
    let peers = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    thread::Builder::new().name("NCCL RAS".into()).spawn(move || {
        // Kept open: agents know a process's node by it.
        let _peers = peers;
        for client in clients.incoming().flatten() {
            // A client that goes away is none of the library's business.
            let _ = answer(client, &document);
        }
    })?;
    Ok("ok".into())
}

/// A listener on a port that others of the same user may have too, which the standard library
/// does not make.
fn shared(port: u16) -> io::Result<TcpListener> {
    let checked =
        |result: c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    // SAFETY: makes a descriptor, which nobody else has.
    let socket = unsafe {
        let made = checked(libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0))?;
        OwnedFd::from_raw_fd(made)
    };
    let on: c_int = 1;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    };
    for option in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
        // SAFETY: the option's value is an int of that size, which the call only reads.
        checked(unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const on).cast(),
                size_of::<c_int>() as libc::socklen_t,
            )
        })?;
    }
    // SAFETY: the address is an IPv4 one of that size, which the calls only read.
    unsafe {
        let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        checked(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length))?;
        checked(libc::listen(socket.as_raw_fd(), 16))?;
    }
    Ok(socket.into())
}

fn answer(client: TcpStream, document: &Path) -> io::Result<()> {
    let knows_formats = document.extension().is_some_and(|end| end == "json");
    let mut to = client.try_clone()?;
    for line in BufReader::new(client).lines() {
        let line = line?;
        let command = line.trim_end().to_ascii_lowercase();
        if command.starts_with("client protocol ") {
            to.write_all(b"SERVER PROTOCOL 2\n")?;
        } else if command.starts_with("timeout ") || (knows_formats && command == "set format json")
        {
            to.write_all(b"OK\n")?;
        } else if command == "verbose status" {
            return to.write_all(&std::fs::read(document)?);
        } else {
            to.write_all(format!("ERROR: Unknown command {line}\n").as_bytes())?;
        }
    }
    Ok(())
}

//! The library's status socket: the line protocol of its RAS subsystem, with a document that is
//! read from a file for every question. A file that ends in `.json` makes a library of 2.28.7 or
//! later, which knows formats; any other an older one.
//!
//! As in the library the processes of a user share the port, `NCCL_RAS_ADDR` says which, and a
//! second socket on the node's address is for the other processes of the job.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
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
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    rustix::net::listen(&socket, 16)?;
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

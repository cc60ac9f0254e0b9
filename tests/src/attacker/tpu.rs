//! Many processes that hold a TPU's chip and say nothing where libtpu would serve.

use super::Attack;
use super::engines::enter;
use crate::sys;
use crate::worker::act::die_with_parent;
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[Attack { name: "silent-libtpu", run: silent }];

/// libtpu's first port.
const PORT: u16 = 8431;

/// `COUNT CHIP GROUP…`: so many processes that have the chip's node and the listening socket from their parent.
/// Each accepts every connection that comes to it, answers none, and writes a line `asked`.
fn silent(arguments: &[String]) -> io::Result<()> {
    let [count, chip, groups @ ..] = arguments else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "silent-libtpu COUNT CHIP GROUP…"));
    };
    let count: usize = count.parse().map_err(io::Error::other)?;
    let _open = enter(groups, chip)?;
    let clients = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))?;
    for _ in 1..count {
        if sys::fork()?.is_none() {
            let lived = die_with_parent().and_then(|()| accept(&clients));
            sys::quit(i32::from(lived.is_err()));
        }
    }
    println!("ready");
    accept(&clients)
}

/// Keeps whatever comes.
fn accept(clients: &TcpListener) -> io::Result<()> {
    let mut kept = Vec::new();
    for client in clients.incoming() {
        kept.push(client?);
        println!("asked");
    }
    Ok(())
}

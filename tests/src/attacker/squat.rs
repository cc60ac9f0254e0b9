//! A tenant who listens, or has a file, where the agent or its receiver should.

use super::{Attack, become_nobody};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::thread;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] =
    &[Attack { name: "squat", run: squat }, Attack { name: "plant", run: plant }];

/// `LINK TARGET`: leads who writes to the one into the other.
fn plant(arguments: &[String]) -> io::Result<()> {
    let [link, target] = arguments else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "plant LINK TARGET"));
    };
    become_nobody()?;
    symlink(target, link)?;
    println!("planted");
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

/// `ADDRESS SECRET`: answers every request as a receiver does. Writes `listening`, and then a line for each read:
/// `secret` where it has the secret, `bytes` otherwise.
fn squat(arguments: &[String]) -> io::Result<()> {
    let [address, secret] = arguments else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "squat ADDRESS SECRET"));
    };
    become_nobody()?;
    let listener = TcpListener::bind(address)?;
    println!("listening");
    for stream in listener.incoming() {
        let (stream, secret) = (stream?, secret.clone());
        thread::spawn(move || serve(stream, secret.as_bytes()));
    }
    Ok(())
}

fn serve(mut stream: TcpStream, secret: &[u8]) {
    let mut bytes = vec![0; 1 << 20];
    while let Ok(read @ 1..) = stream.read(&mut bytes) {
        let has_secret = bytes[..read].windows(secret.len()).any(|window| window == secret);
        println!("{}", if has_secret { "secret" } else { "bytes" });
        // Who has gone away needs no answer.
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    }
}

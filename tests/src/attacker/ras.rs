//! Answers of a false NCCL status service (RAS): `ras KIND PORT [FILE]` listens on the port as NCCL
//! does, as nobody, and answers with what the kind says; `heard` appends to FILE whatever it hears. It is looked at as a process of NCCL's
//! where it is started with a device open and the library preloaded.

use super::{Attack, become_nobody};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[Attack { name: "ras", run: serve }];

/// As much as agents once read of an answer, nearly.
const MUCH: usize = 60 << 20;

fn serve(arguments: &[String]) -> io::Result<()> {
    let [kind, port, rest @ ..] = arguments else {
        return Err(io::Error::other("ras KIND PORT [FILE]"));
    };
    // Before it is nobody: the file is root's, and is written while it is served.
    let open = |path| OpenOptions::new().read(true).append(true).open(path);
    let file = rest.first().map(open).transpose()?;
    become_nobody()?;
    let port: u16 = port.parse().map_err(io::Error::other)?;
    let clients = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    // Agents know a process's node by it.
    let _peers = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let kind = kind.clone();
    thread::spawn(move || {
        for client in clients.incoming().flatten() {
            // A client that goes away is what is tried.
            let _ = answer(client, &kind, file.as_ref());
        }
    });
    writeln!(io::stdout(), "ready")?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn answer(client: TcpStream, kind: &str, file: Option<&File>) -> io::Result<()> {
    let mut to = client.try_clone()?;
    if let Some(mut heard) = file.filter(|_| kind == "heard") {
        // Whatever it is, and be it a connection alone.
        heard.write_all(b"a client\n")?;
    }
    for line in BufReader::new(client).lines() {
        let line = line?;
        if let Some(mut heard) = file.filter(|_| kind == "heard") {
            writeln!(heard, "{line}")?;
        }
        match line.as_str() {
            line if line.starts_with("CLIENT PROTOCOL ") => to.write_all(b"SERVER PROTOCOL 2\n")?,
            "VERBOSE STATUS" => return status(&mut to, kind, file),
            _ => to.write_all(b"OK\n")?,
        }
    }
    Ok(())
}

/// The answer itself.
fn status(to: &mut TcpStream, kind: &str, file: Option<&File>) -> io::Result<()> {
    let begin = r#"{"nccl_version":"2.29.7","communicators":["#;
    let rank = r#"{"rank":1,"host":"10.0.0.1","pid":7,"collective_counts":{"A":1}},"#;
    match kind {
        "file" => {
            let mut text = Vec::new();
            if let Some(mut file) = file {
                file.rewind()?;
                file.read_to_end(&mut text)?;
            }
            to.write_all(&text)
        }
        "many" => {
            to.write_all(begin.as_bytes())?;
            to.write_all(br#"{"hash":"0x1","size":9,"ranks":["#)?;
            repeat(to, rank)
        }
        "absent" => {
            to.write_all(begin.as_bytes())?;
            to.write_all(br#"{"hash":"0x1","size":9,"missing_ranks":["#)?;
            let status = r#"{"unresponsive":true,"considered_dead":true}"#;
            for pid in 1..MUCH / 100 {
                let (a, b) = (pid / 256 % 256, pid % 256);
                let host = format!(r#""host":"10.1.{a}.{b}""#);
                write!(to, r#"{{"rank":{pid},{host},"pid":{pid},"status":{status}}},"#)?;
            }
            Ok(())
        }
        "empties" => {
            to.write_all(begin.as_bytes())?;
            repeat(to, r#"{"hash":"0x1","size":0,"ranks":[]},"#)
        }
        "huge" => {
            to.write_all(begin.as_bytes())?;
            to.write_all(br#"{"hash":"0x1","size":9,"ranks":[{"rank":1,"host":""#)?;
            repeat(to, "x")
        }
        // A byte now and then, for ever.
        _ => loop {
            to.write_all(b" ")?;
            thread::sleep(Duration::from_millis(500));
        },
    }
}

fn repeat(to: &mut TcpStream, text: &str) -> io::Result<()> {
    let block = text.repeat((64 << 10) / text.len());
    for _ in 0..MUCH / block.len() {
        to.write_all(block.as_bytes())?;
    }
    Ok(())
}

//! False inference engines: what they answer, and the processes beside them.

use super::{Attack, NOBODY};
use crate::engine::serve::PAGE;
use crate::sys;
use crate::worker::act::{become_user, die_with_parent, join, take_name};
use crate::worker::nodes::{open_gpus, private_dev};
use crate::worker::script::Script;
use rustix::event::epoll;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::{UnshareFlags, set_thread_res_uid};
use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The attacks, by name. Their last arguments are the directories of the tenant's cgroup.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "engines", run: engines },
    Attack { name: "engine", run: engine },
    Attack { name: "crowd", run: crowd },
    Attack { name: "epolls", run: epolls },
    Attack { name: "exporter", run: exporter },
    Attack { name: "stand-in", run: stand_in },
];

/// As much as the agent reads of a page.
const MAX_PAGE: usize = 8 << 20;
/// Histograms on a page: as many as its lines allow.
const HISTOGRAMS: usize = 17_000;
/// Buckets of a wide histogram, and such histograms on a page of less than a MiB.
const BUCKETS: usize = 128;
const WIDE: usize = 90;
/// Processes that share epoll descriptors with the one that made them.
const SHARING: usize = 8;
/// How an engine calls itself, and the port that it has without another one.
const TITLE: &str = "VLLM::APIServer";
const PORT: u16 = 8000;
/// The port of DCGM's exporter.
const EXPORTERS_PORT: u16 = 9400;
/// Models of a page of `churn`.
const MODELS: u64 = 80;
/// In the place of a device's number.
const NO_GPU: &str = "none";

/// `KIND COUNT PORT GPU GROUP…`: so many engines in a network of their own, from this port on, beside
/// a process that holds the device. Each writes a line `ready`, then one for each request that it
/// answers: `page` or `version`.
fn engines(arguments: &[String]) -> io::Result<()> {
    let [kind, count, port, gpu, groups @ ..] = arguments else { return Err(usage()) };
    let (count, port) = (number::<u16>(count)?, number::<u16>(port)?);
    let _open = enter(groups, gpu)?;
    let is_exporter = kind.starts_with("dcgm");
    let (name, option) =
        if is_exporter { ("dcgm-exporter", "--address") } else { ("attacker", "--port") };
    for port in port..port.saturating_add(count) {
        if kind == "again" {
            thread::spawn(move || start_again(port));
            continue;
        }
        let mut engine = Command::new("/proc/self/exe");
        engine.arg0(name).args(["engine", kind, option, &port.to_string()]);
        engine.stdin(Stdio::null()).spawn()?;
    }
    wait()
}

/// An engine that is started again after two pages, each time with other models.
fn start_again(port: u16) -> io::Result<()> {
    loop {
        let mut engine = Command::new("/proc/self/exe");
        engine.arg0("attacker").args(["engine", "again", "--port", &port.to_string()]);
        engine.stdin(Stdio::null()).spawn()?.wait()?;
        line("ended")?;
    }
}

/// Joins the groups, takes a network and a `/dev` of its own, becomes nobody and opens the device.
pub(super) fn enter(groups: &[String], gpu: &str) -> io::Result<Vec<OwnedFd>> {
    enter_as(Some(NOBODY), groups, gpu)
}

/// The same as any user.
fn enter_as(user: Option<u32>, groups: &[String], gpu: &str) -> io::Result<Vec<OwnedFd>> {
    join(groups)?;
    sys::own_namespaces(UnshareFlags::NEWNET)?;
    sys::loopback_up()?;
    private_dev()?;
    become_user(user)?;
    let gpus = if gpu == NO_GPU { Vec::new() } else { vec![number(gpu)?] };
    open_gpus(&Script { gpus, ..Script::default() })
}

/// One of them: `KIND OPTION PORT`.
fn engine(arguments: &[String]) -> io::Result<()> {
    let [kind, _, port] = arguments else { return Err(usage()) };
    die_with_parent()?;
    take_name(if kind.starts_with("dcgm") { "dcgm-exporter" } else { TITLE })?;
    let clients = TcpListener::bind((Ipv4Addr::UNSPECIFIED, number(port)?))?;
    let page = page(kind)?;
    line("ready")?;
    let mut pages = 0;
    for client in clients.incoming().flatten() {
        // A client that goes away is what is tried.
        pages += usize::from(answer(client, kind, &page).unwrap_or_default());
        if kind == "again" && pages == 2 {
            break;
        }
    }
    Ok(())
}

/// Whether it was the page that was asked for.
fn answer(mut client: TcpStream, kind: &str, page: &str) -> io::Result<bool> {
    let lines = BufReader::new(client.try_clone()?).lines();
    let head: Vec<_> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let is_page = head.first().is_some_and(|line| line.starts_with("GET /metrics "));
    line(if is_page { "page" } else { "version" })?;
    if kind == "interim" {
        let answers = "HTTP/1.1 100 Continue\r\n\r\n".repeat(2_000);
        loop {
            client.write_all(answers.as_bytes())?;
        }
    }
    // As many values as a page may have bytes, and a document to its end.
    let version = || format!("{{\"version\":[0{}]}}", ",0".repeat(MAX_PAGE / 2 - 16));
    let (media, body) = if is_page {
        ("text/plain; version=0.0.4", renamed(kind, page))
    } else {
        ("application/json", version())
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n\r\n");
    client.write_all(head.as_bytes())?;
    client.write_all(body.as_bytes())?;
    Ok(is_page)
}

/// The page; that of `churn` names other models each time, that of `again` in each process.
fn renamed(kind: &str, page: &str) -> String {
    static PAGES: AtomicU64 = AtomicU64::new(0);
    let (first, process) = match kind {
        "churn" => (PAGES.fetch_add(MODELS, Ordering::Relaxed), 0),
        "again" => (0, std::process::id()),
        _ => return page.to_owned(),
    };
    let line =
        |number| format!("vllm:num_requests_running{{model_name=\"m{process}-{number}\"}} 1\n");
    (first..first + MODELS).map(line).collect()
}

/// What an engine serves; `dcgm` is followed by a device's UUID.
fn page(kind: &str) -> io::Result<String> {
    let mut page = String::new();
    // Writing to a string cannot fail.
    match kind.split_once(':').unwrap_or((kind, "")) {
        ("version" | "interim" | "plain" | "churn" | "again", _) => page.push_str(PAGE),
        ("comment", _) => {
            page.push_str(PAGE);
            page.push_str("# ");
            page.push_str(&"x".repeat(MAX_PAGE - page.len() - 1));
            page.push('\n');
        }
        ("histograms", _) => {
            let name = "vllm:e2e_request_latency_seconds";
            let _ = writeln!(page, "# TYPE {name} histogram");
            for rank in 0..HISTOGRAMS {
                let labels = format!("engine=\"{rank}\",model_name=\"m\"");
                let _ = writeln!(page, "{name}_bucket{{{labels},le=\"+Inf\"}} 1");
                let _ = writeln!(page, "{name}_sum{{{labels}}} 1\n{name}_count{{{labels}}} 1");
            }
        }
        ("wide", _) => {
            let name = "vllm:e2e_request_latency_seconds";
            let _ = writeln!(page, "# TYPE {name} histogram");
            for rank in 0..WIDE {
                let labels = format!("engine=\"{rank}\",model_name=\"m\"");
                for bucket in 1..BUCKETS {
                    let _ = writeln!(page, "{name}_bucket{{{labels},le=\"{bucket}.5\"}} 1");
                }
                let _ = writeln!(page, "{name}_bucket{{{labels},le=\"+Inf\"}} 1");
                let _ = writeln!(page, "{name}_sum{{{labels}}} 1\n{name}_count{{{labels}}} 1");
            }
        }
        ("dcgm", uuid) => {
            let name = "DCGM_FI_PROF_SM_ACTIVE";
            let _ = writeln!(page, "# TYPE {name} gauge\n{name}{{gpu=\"0\",UUID=\"{uuid}\"}} 0.75");
        }
        _ => return Err(usage()),
    }
    Ok(page)
}

/// `COUNT DESCRIPTORS GPU GROUP…`: so many processes that share the descriptors of a listener, each an
/// engine by its name. The last of them accepts every connection, and none answers.
fn crowd(arguments: &[String]) -> io::Result<()> {
    let [count, descriptors, gpu, groups @ ..] = arguments else { return Err(usage()) };
    let (count, descriptors) = (number::<usize>(count)?, number::<usize>(descriptors)?);
    let _open = enter(groups, gpu)?;
    take_name(TITLE)?;
    all_descriptors();
    let clients = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    let _same =
        (0..descriptors).map(|_| rustix::io::dup(&clients)).collect::<Result<Vec<_>, _>>()?;
    for number in 1..count {
        if sys::fork()?.is_some() {
            continue;
        }
        let lived = die_with_parent().and_then(|()| {
            if number + 1 == count {
                let mut accepted = Vec::new();
                for client in clients.incoming() {
                    accepted.push(client?);
                    line("accepted")?;
                }
                Ok(())
            } else {
                wait()
            }
        });
        sys::quit(i32::from(lived.is_err()));
    }
    line("ready")?;
    wait()
}

/// `COUNT ENTRIES GPU GROUP…`: so many epoll descriptors with so many entries each, beside a device, in
/// some processes that share them.
fn epolls(arguments: &[String]) -> io::Result<()> {
    let [count, entries, gpu, groups @ ..] = arguments else { return Err(usage()) };
    let (count, entries) = (number::<usize>(count)?, number::<usize>(entries)?);
    let _open = enter(groups, gpu)?;
    all_descriptors();
    // They come before their entries: the first descriptors of a process are looked at.
    let create = |_| epoll::create(epoll::CreateFlags::CLOEXEC);
    let polled = (0..count).map(create).collect::<Result<Vec<_>, _>>()?;
    let (_reader, writer) = rustix::pipe::pipe()?;
    for _ in 0..entries {
        // Open until the process ends.
        let entry = std::mem::ManuallyDrop::new(rustix::io::dup(&writer)?);
        for all in &polled {
            epoll::add(all, &*entry, epoll::EventData::new_u64(0), epoll::EventFlags::ERR)?;
        }
    }
    for _ in 0..SHARING {
        if sys::fork()?.is_none() {
            let lived = die_with_parent().and_then(|()| wait());
            sys::quit(i32::from(lived.is_err()));
        }
    }
    line("ready")?;
    wait()
}

/// As many descriptors as an ordinary user may have.
fn all_descriptors() {
    let most = getrlimit(Resource::Nofile).maximum;
    // Fewer are an attack as well.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
}

/// `USER PROGRAM UUID GPU GROUP…`: serves an exporter's page about that device, beside PROGRAM, which has the
/// exporter's name as its argument and the socket that listens. Writes the same lines as `engines`.
fn exporter(arguments: &[String]) -> io::Result<()> {
    let [user, program, uuid, gpu, groups @ ..] = arguments else { return Err(usage()) };
    let _open = enter_as(Some(number(user)?), groups, gpu)?;
    let clients = TcpListener::bind((Ipv4Addr::UNSPECIFIED, EXPORTERS_PORT))?;
    fcntl_setfd(&clients, FdFlags::empty())?;
    let mut named = Command::new(program);
    named.arg0("dcgm-exporter").args(["stand-in", "--address", &format!(":{EXPORTERS_PORT}")]);
    named.stdin(Stdio::null()).spawn()?;
    let kind = format!("dcgm:{uuid}");
    let page = page(&kind)?;
    line("ready")?;
    for client in clients.incoming().flatten() {
        // A client that goes away is what is tried.
        let _ = answer(client, &kind, &page);
    }
    Ok(())
}

/// What a program that is set-user-ID of root's may do: it becomes root in every respect, if it can, and
/// stays.
fn stand_in(_: &[String]) -> io::Result<()> {
    let root = Uid::ROOT;
    // Without the permission it is a user's own program by that name.
    let _ = set_thread_res_uid(root, root, root);
    die_with_parent()?;
    loop {
        thread::park();
    }
}

fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Until nobody wants the attack any more.
fn wait() -> io::Result<()> {
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn number<T: FromStr>(text: &str) -> io::Result<T> {
    text.parse().map_err(|_| usage())
}

fn usage() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "wrong arguments")
}

//! Serves the clients of one socket without letting one wait for another: one thread a socket, at
//! most [`MAX_CLIENTS`] unprivileged clients at once, and a bounded amount of work a second for
//! them.

use super::client::{Client, Step};
use super::{Answer, Reply, Request};
use crate::who::HostReport;
use gpuwho_pipeline::event::recent::EventReport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write as _};
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Unprivileged clients at once; each costs a descriptor and its answer, some 100 KiB at most.
const MAX_CLIENTS: usize = 64;
/// Of these, clients of one user: some commands side by side.
const MAX_OF_USER: usize = 4;
/// Clients of root and the agent's own user, which have a limit of their own.
const MAX_PRIVILEGED: usize = 16;
/// Time between two answers to unprivileged clients: at most 50 a second, which costs a few per
/// cent of a core on a large node. With 64 clients, one waits 1.3 s for its answer.
const PACE: Duration = Duration::from_millis(20);
/// Largest age of the table that unprivileged clients get.
const TABLE_AGE: Duration = Duration::from_millis(250);
/// Connections accepted in one turn of the loop.
const MAX_ACCEPTED: usize = 16;
/// Shortest turn of the loop, so that busy clients cannot keep the thread running.
const TURN: Duration = Duration::from_millis(5);

/// Who may use a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every user, for what only reads.
    Public {
        /// Whether every user sees all processes.
        show_others: bool,
    },
    /// Root and the agent's own user, for commands.
    Admin,
}

/// Answers requests until nobody has been a client for `linger`.
pub fn serve(listener: &UnixListener, access: Access, answer: &dyn Answer, linger: Duration) {
    let mut server =
        Server { access, answer, clients: Vec::new(), table: None, next: Instant::now() };
    let mut last = Instant::now();
    while last.elapsed() < linger {
        server.wait(listener, linger);
        let began = Instant::now();
        if server.accept(listener) || !server.clients.is_empty() {
            last = began;
        }
        server.turn();
        thread::sleep(TURN.saturating_sub(began.elapsed()));
    }
}

struct Server<'a> {
    access: Access,
    answer: &'a dyn Answer,
    clients: Vec<Client>,
    /// The table for unprivileged clients, and when it was made.
    table: Option<(Instant, HostReport)>,
    /// When the next unprivileged client may be answered.
    next: Instant,
}

impl Server<'_> {
    /// Waits until a client connects, sends, can receive, may be answered, or times out, and at most so long.
    fn wait(&self, listener: &UnixListener, at_most: Duration) {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        for client in self.clients.iter().filter(|client| client.request().is_none()) {
            let flags = if client.is_answered() { PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::new(client.stream(), flags));
        }
        let has_turn = self.clients.iter().any(|client| client.request().is_some());
        let turn = has_turn.then_some(self.next);
        let due = self.clients.iter().map(Client::until).chain(turn).min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.map_or(at_most, |left| left.min(at_most));
        let left = Timespec::try_from(left).ok();
        // An interrupted wait ends early.
        let _ = poll(&mut fds, left.as_ref());
    }

    /// Returns whether anybody came.
    fn accept(&mut self, listener: &UnixListener) -> bool {
        for accepted in 0..MAX_ACCEPTED {
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Ok(client) = Client::new(stream) {
                        self.admit(client);
                    }
                }
                // None is left, the connection is already closed, or no descriptor is left: serve the others.
                Err(_) => return accepted > 0,
            }
        }
        true
    }

    /// Admits a client; where there is no room, in place of an older one that has not sent a
    /// request.
    fn admit(&mut self, client: Client) {
        let is_alike = |other: &Client| other.is_privileged == client.is_privileged;
        let limit = if client.is_privileged { MAX_PRIVILEGED } else { MAX_CLIENTS };
        let all = self.clients.iter().filter(|other| is_alike(other)).count();
        let is_users = |other: &Client| is_alike(other) && other.uid == client.uid;
        let of_user = self.clients.iter().filter(|other| is_users(other)).count();
        let has_room = if !client.is_privileged && of_user >= MAX_OF_USER {
            self.end_silent(is_users)
        } else {
            all < limit || self.end_silent(is_alike)
        };
        if has_room {
            self.clients.push(client);
        } else {
            refuse(&client);
        }
    }

    /// Disconnects the oldest selected client that has not sent a request; false where there is
    /// none.
    fn end_silent(&mut self, of: impl Fn(&Client) -> bool) -> bool {
        let oldest = self.clients.iter().position(|client| client.is_silent() && of(client));
        oldest.map(|at| self.clients.remove(at)).is_some()
    }

    /// Reads from and writes to every client as far as possible without blocking.
    fn turn(&mut self) {
        let mut clients = std::mem::take(&mut self.clients);
        clients.retain_mut(|client| {
            let mut step = client.step(Instant::now());
            if step == Step::Waits && self.reply(client) {
                step = client.step(Instant::now());
            }
            step == Step::Waits
        });
        self.clients = clients;
    }

    /// Answers a client that has sent a request, if it may be answered now; returns whether it did.
    fn reply(&mut self, client: &mut Client) -> bool {
        let began = Instant::now();
        let Some(request) = client.request() else { return false };
        if !client.is_privileged && began < self.next {
            return false;
        }
        let reply = match serde_json::from_slice(request) {
            Ok(request) => self.to(&request, client),
            Err(error) => Reply::Refused { reason: format!("not a request: {error}") },
        };
        let took = began.elapsed();
        if !client.is_privileged {
            self.next = began + PACE.max(took);
        }
        client.put(line(&reply), took);
        true
    }

    fn to(&mut self, request: &Request, client: &Client) -> Reply {
        match (request, self.access) {
            (Request::Who, _) => Reply::Who { who: Box::new(self.who(client)) },
            (Request::Events, _) => Reply::Events { events: Box::new(self.events(client)) },
            (Request::Health, _) => Reply::Health { health: Box::new(self.answer.health()) },
            (Request::Receipt { name }, _) => {
                let receipts = self.answer.receipts(name, self.viewer(client));
                Reply::Receipts { receipts: Box::new(receipts) }
            }
            _ if !client.is_privileged => {
                Reply::Refused { reason: "only root and the agent's own user may do this".into() }
            }
            (_, Access::Public { .. }) => {
                let admin = super::ADMIN_SOCKET;
                Reply::Refused { reason: format!("this is done over {admin} beside this socket") }
            }
            (Request::Release { seconds }, Access::Admin) => {
                let length = Duration::from_secs(*seconds);
                done(client, "release", Ok(self.answer.release(length)))
            }
            (Request::Resume, Access::Admin) => done(client, "resume", Ok(self.answer.resume())),
            (Request::Forget { uuid }, Access::Admin) => {
                done(client, "forget", self.answer.forget(uuid))
            }
        }
    }

    /// Whose processes alone this client may see named; `None` where it may see all.
    fn viewer(&self, client: &Client) -> Option<u32> {
        let sees_all = client.is_privileged || self.access == Access::Public { show_others: true };
        (!sees_all).then_some(client.uid)
    }

    /// The events for this client.
    fn events(&self, client: &Client) -> EventReport {
        self.answer.events(self.viewer(client))
    }

    /// The table for this client.
    fn who(&mut self, client: &Client) -> HostReport {
        let events = self.events(client).summary(SystemTime::now());
        HostReport { events, ..self.table(client) }
    }

    fn table(&mut self, client: &Client) -> HostReport {
        if client.is_privileged {
            return self.answer.who();
        }
        let is_fresh = |(at, _): &&(Instant, HostReport)| at.elapsed() < TABLE_AGE;
        let table = match self.table.take().filter(|table| is_fresh(&table)) {
            Some(table) => table,
            None => (Instant::now(), self.answer.who()),
        };
        let who = match self.viewer(client) {
            Some(uid) => table.1.as_seen_by(uid),
            None => table.1.clone(),
        };
        self.table = Some(table);
        who
    }
}

/// The reply to a command that changes what the agent does, and a line about who had it done.
fn done(client: &Client, command: &str, answer: Result<String, String>) -> Reply {
    match answer {
        Ok(message) => {
            tracing::warn!(uid = client.uid, pid = client.pid, "{command}: {message}");
            Reply::Done { message }
        }
        Err(reason) => Reply::Refused { reason },
    }
}

/// Replies that there is no room. A client that does not receive it notices the closed connection.
fn refuse(client: &Client) {
    let _: io::Result<usize> = client.stream().write(&line(&Reply::Busy));
}

fn line(reply: &Reply) -> Vec<u8> {
    // Serializing a reply does not fail.
    let mut text = serde_json::to_vec(reply).unwrap_or_default();
    text.push(b'\n');
    text
}

//! Answers the talks on one socket, none of which waits for another: a thread for each socket, at
//! most [`MAX_TALKS`] open at once on it, and no more work a second for clients without privilege
//! than is stated here.

use super::talk::{Step, Talk};
use super::{Answer, Reply, Request};
use crate::event::recent::EventReport;
use crate::who::HostReport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Talks that clients without privilege have at once; each costs a descriptor and its answer, some
/// 100 KiB at most.
const MAX_TALKS: usize = 64;
/// Of these, of one user: some commands side by side.
const MAX_OF_USER: usize = 4;
/// Talks of root's and the agent's own user's, which have places of their own.
const MAX_PRIVILEGED: usize = 16;
/// Between two answers to clients without privilege: at most 50 a second, which is a few per cent
/// of a core on a large node. One of 64 that have asked waits 1.3 s for its turn.
const PACE: Duration = Duration::from_millis(20);
/// A table that clients without privilege get is no older than this.
const TABLE_AGE: Duration = Duration::from_millis(250);
/// Connections taken in a turn, and how long a turn lasts at least where others keep it busy.
const MAX_ACCEPTED: usize = 16;
const TURN: Duration = Duration::from_millis(5);

/// Whose a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody's, for questions.
    Public {
        /// Whether others' processes are named to everybody.
        show_others: bool,
    },
    /// Root's and the agent's own user's, for commands.
    Admin,
}

/// Answers requests until the process ends.
pub fn serve(listener: &UnixListener, access: Access, answer: &dyn Answer) {
    let mut server =
        Server { access, answer, talks: Vec::new(), table: None, next: Instant::now() };
    if let Err(error) = listener.set_nonblocking(true) {
        tracing::warn!(%error, "the control socket is not answered");
        return;
    }
    loop {
        server.wait(listener);
        let began = Instant::now();
        server.accept(listener);
        server.turn();
        thread::sleep(TURN.saturating_sub(began.elapsed()));
    }
}

struct Server<'a> {
    access: Access,
    answer: &'a dyn Answer,
    talks: Vec<Talk>,
    /// What clients without privilege are told, and since when.
    table: Option<(Instant, HostReport)>,
    /// When the next of them may be answered.
    next: Instant,
}

impl Server<'_> {
    /// Until somebody connects, speaks, can read on, has its turn or is over.
    fn wait(&self, listener: &UnixListener) {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        for talk in self.talks.iter().filter(|talk| talk.request().is_none()) {
            let flags = if talk.is_answered() { PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::new(talk.stream(), flags));
        }
        let has_turn = self.talks.iter().any(|talk| talk.request().is_some());
        let turn = has_turn.then_some(self.next);
        let due = self.talks.iter().map(Talk::until).chain(turn).min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // An interrupted wait is over.
        let _ = poll(&mut fds, left.as_ref());
    }

    fn accept(&mut self, listener: &UnixListener) {
        for _ in 0..MAX_ACCEPTED {
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Ok(talk) = Talk::new(stream) {
                        self.admit(talk);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Of a connection that is gone again, or for want of descriptors: others' turn.
                Err(_) => return,
            }
        }
    }

    /// Gives a talk a place: that of an older one that says nothing, if there is no other.
    fn admit(&mut self, talk: Talk) {
        let is_alike = |other: &Talk| other.is_privileged == talk.is_privileged;
        let most = if talk.is_privileged { MAX_PRIVILEGED } else { MAX_TALKS };
        let all = self.talks.iter().filter(|other| is_alike(other)).count();
        let is_users = |other: &Talk| is_alike(other) && other.uid == talk.uid;
        let of_user = self.talks.iter().filter(|other| is_users(other)).count();
        let has_room = if !talk.is_privileged && of_user >= MAX_OF_USER {
            self.end_silent(is_users)
        } else {
            all < most || self.end_silent(is_alike)
        };
        if has_room {
            self.talks.push(talk);
        } else {
            refuse(&talk);
        }
    }

    /// Ends the oldest silent talk of some; false where there is none.
    fn end_silent(&mut self, of: impl Fn(&Talk) -> bool) -> bool {
        let oldest = self.talks.iter().position(|talk| talk.is_silent() && of(talk));
        oldest.map(|at| self.talks.remove(at)).is_some()
    }

    /// Lets every talk go on as far as it can.
    fn turn(&mut self) {
        let mut talks = std::mem::take(&mut self.talks);
        talks.retain_mut(|talk| {
            let mut step = talk.step(Instant::now());
            if step == Step::Waits && self.reply(talk) {
                step = talk.step(Instant::now());
            }
            step == Step::Waits
        });
        self.talks = talks;
    }

    /// Answers a talk that has asked, if it is its turn; whether it did.
    fn reply(&mut self, talk: &mut Talk) -> bool {
        let began = Instant::now();
        let Some(request) = talk.request() else { return false };
        if !talk.is_privileged && began < self.next {
            return false;
        }
        let reply = match serde_json::from_slice(request) {
            Ok(request) => self.to(&request, talk),
            Err(error) => Reply::Refused { reason: format!("not a request: {error}") },
        };
        let took = began.elapsed();
        if !talk.is_privileged {
            self.next = began + PACE.max(took);
        }
        talk.put(line(&reply), took);
        true
    }

    fn to(&mut self, request: &Request, talk: &Talk) -> Reply {
        match (request, self.access) {
            (Request::Who, _) => Reply::Who { who: Box::new(self.who(talk)) },
            (Request::Events, _) => Reply::Events { events: Box::new(self.events(talk)) },
            _ if !talk.is_privileged => {
                Reply::Refused { reason: "only root and the agent's own user may do this".into() }
            }
            (_, Access::Public { .. }) => {
                let admin = super::ADMIN_SOCKET;
                Reply::Refused { reason: format!("this is done over {admin} beside this socket") }
            }
            (Request::Release { seconds }, Access::Admin) => {
                Reply::Done { message: self.answer.release(Duration::from_secs(*seconds)) }
            }
            (Request::Resume, Access::Admin) => Reply::Done { message: self.answer.resume() },
            (Request::Forget { uuid }, Access::Admin) => match self.answer.forget(uuid) {
                Ok(message) => Reply::Done { message },
                Err(reason) => Reply::Refused { reason },
            },
        }
    }

    /// Whose processes alone this client may see named; `None` where it may see all.
    fn viewer(&self, talk: &Talk) -> Option<u32> {
        let sees_all = talk.is_privileged || self.access == Access::Public { show_others: true };
        (!sees_all).then_some(talk.uid)
    }

    /// The events for this client.
    fn events(&self, talk: &Talk) -> EventReport {
        self.answer.events(self.viewer(talk))
    }

    /// The table for this client.
    fn who(&mut self, talk: &Talk) -> HostReport {
        let events = self.events(talk).summary(SystemTime::now());
        HostReport { events, ..self.table(talk) }
    }

    fn table(&mut self, talk: &Talk) -> HostReport {
        if talk.is_privileged {
            return self.answer.who();
        }
        let is_fresh = |(at, _): &&(Instant, HostReport)| at.elapsed() < TABLE_AGE;
        let table = match self.table.take().filter(|table| is_fresh(&table)) {
            Some(table) => table,
            None => (Instant::now(), self.answer.who()),
        };
        let who = match self.viewer(talk) {
            Some(uid) => table.1.as_seen_by(uid),
            None => table.1.clone(),
        };
        self.table = Some(table);
        who
    }
}

/// Says that there is no place. A client that does not take even that is not told.
fn refuse(talk: &Talk) {
    let _: io::Result<usize> = talk.stream().write(&line(&Reply::Busy));
}

fn line(reply: &Reply) -> Vec<u8> {
    // Nothing in a reply fails to be JSON; an empty line would be no answer.
    let mut text = serde_json::to_vec(reply).unwrap_or_default();
    text.push(b'\n');
    text
}

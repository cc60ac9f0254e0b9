//! The thread that looks, so that a slow agent or driver never holds up a key.

use super::Look;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// News.
#[derive(Debug)]
pub(super) enum Update {
    Look(Box<Look>),
    /// Why there is none.
    Failed(String),
}

/// Where the news come.
#[derive(Debug)]
pub(super) struct Feed(Receiver<Update>);

impl Feed {
    /// What has come, if anything has.
    pub(super) fn next(&self) -> Option<Update> {
        self.0.try_recv().ok()
    }
}

/// Looks again and again, until nobody listens.
pub(super) fn start(
    every: Duration,
    look: impl FnMut() -> Result<Look, String> + Send + 'static,
) -> Feed {
    // One waits while one is drawn; more would be old.
    let (send, receive) = sync_channel(1);
    let started =
        thread::Builder::new().name("top:look".to_owned()).spawn(move || work(&send, every, look));
    match started {
        Ok(_) => Feed(receive),
        Err(why) => {
            let (send, receive) = sync_channel(1);
            // There is room for it.
            let _ = send.try_send(Update::Failed(format!("cannot start a thread: {why}")));
            Feed(receive)
        }
    }
}

fn work(
    send: &SyncSender<Update>,
    every: Duration,
    mut look: impl FnMut() -> Result<Look, String>,
) {
    loop {
        let began = Instant::now();
        let update = match look() {
            Ok(look) => Update::Look(Box::new(look)),
            Err(why) => Update::Failed(why),
        };
        if send.send(update).is_err() {
            return;
        }
        thread::sleep(every.saturating_sub(began.elapsed()));
    }
}

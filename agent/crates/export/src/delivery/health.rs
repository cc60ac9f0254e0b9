//! Logs the receiver's state: once when sending starts to fail, once when the cause changes, once
//! when sending works again.

use super::cause::Cause;
use super::{Sentences, settings::Endpoint};
use std::mem::Discriminant;
use std::time::{Duration, Instant};

/// Causes may alternate, and every batch may be partly refused: at most one line in this time.
const QUIET: Duration = Duration::from_mins(1);

/// What was logged about the receiver.
#[derive(Debug)]
pub(super) struct Health {
    pub(super) endpoint: Endpoint,
    sentences: &'static Sentences,
    failing: Option<Failing>,
    partial: Option<Instant>,
}

type Kind = (Discriminant<Cause>, &'static str);

#[derive(Debug)]
struct Failing {
    since: Instant,
    logged: Instant,
    cause: Kind,
}

impl Health {
    pub(super) fn new(endpoint: Endpoint, sentences: &'static Sentences) -> Self {
        Self { endpoint, sentences, failing: None, partial: None }
    }

    /// An attempt failed and will be repeated, or the request was refused.
    pub(super) fn failed(&mut self, cause: &Cause, again: bool, now: Instant) {
        if !self.should_log(cause.kind(), now) {
            return;
        }
        let (endpoint, sentences) = (&self.endpoint, self.sentences);
        let sentence = if again { sentences.fails } else { sentences.refuses };
        tracing::warn!(%endpoint, %cause, "{sentence}");
    }

    /// The receiver accepted a request.
    pub(super) fn worked(&mut self, now: Instant) {
        if let Some(failing) = self.failing.take() {
            let seconds = now.duration_since(failing.since).as_secs();
            tracing::info!(endpoint = %self.endpoint, seconds, "{}", self.sentences.works);
        }
    }

    /// The receiver accepted part of a request.
    pub(super) fn partial(&mut self, rejected: u64, message: &str, now: Instant) {
        if self.partial.is_some_and(|last| now.duration_since(last) < QUIET) {
            return;
        }
        self.partial = Some(now);
        let endpoint = &self.endpoint;
        tracing::warn!(%endpoint, rejected, message, "{}", self.sentences.rejects);
    }

    fn should_log(&mut self, cause: Kind, now: Instant) -> bool {
        let Some(failing) = &mut self.failing else {
            self.failing = Some(Failing { since: now, logged: now, cause });
            return true;
        };
        if failing.cause == cause || now.duration_since(failing.logged) < QUIET {
            return false;
        }
        failing.cause = cause;
        failing.logged = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENTENCES: Sentences = Sentences { fails: "", refuses: "", works: "", rejects: "" };

    fn health() -> Health {
        Health::new(Endpoint::exact("http://127.0.0.1:4318").unwrap(), &SENTENCES)
    }

    #[test]
    fn a_cause_is_logged_once_until_sending_works_again() {
        let (mut health, start) = (health(), Instant::now());
        let refused = Cause::Refused.kind();
        let later = start + Duration::from_hours(1);
        let news = [health.should_log(refused, start), health.should_log(refused, later)];
        assert_eq!(news, [true, false]);
        health.worked(later);
        assert!(health.should_log(refused, later));
    }

    #[test]
    fn another_cause_is_logged_once_a_minute() {
        let (mut health, start) = (health(), Instant::now());
        let (refused, lost) = (Cause::Refused.kind(), Cause::UnknownCa.kind());
        let at = |seconds| start + Duration::from_secs(seconds);
        let news =
            [(refused, 0), (lost, 1), (refused, 2), (lost, 60), (refused, 61), (refused, 120)]
                .map(|(cause, seconds)| health.should_log(cause, at(seconds)));
        assert_eq!(news, [true, false, false, true, false, true]);
    }
}

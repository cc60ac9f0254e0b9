//! Logs the receiver's state: once when sending starts to fail, once when the cause changes, once
//! when sending works again.

use super::cause::Cause;
use super::sender::Transport;
use super::settings::Endpoint;
use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};

/// Causes may alternate, and every batch may be partly refused: at most one line in this time.
const QUIET: Duration = Duration::from_mins(1);

/// The sentences of one kind of receiver.
#[derive(Debug)]
struct Sentences {
    fails: &'static str,
    refuses: &'static str,
    works: &'static str,
    rejects: &'static str,
}

const OTLP: Sentences = Sentences {
    fails: "OTLP export fails; points wait in the queue",
    refuses: "OTLP receiver refuses the points; they are lost",
    works: "OTLP export works again",
    rejects: "OTLP receiver rejected some points",
};
const WEBHOOK: Sentences = Sentences {
    fails: "the webhook does not take events; they wait in the queue",
    refuses: "the webhook refuses events; they are lost",
    works: "the webhook works again",
    rejects: "the webhook rejected some events",
};

/// What was logged about the receiver.
#[derive(Debug)]
pub(super) struct Health {
    endpoint: Endpoint,
    sentences: &'static Sentences,
    failing: Option<Failing>,
    partial: Option<Instant>,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    logged: Instant,
    cause: Discriminant<Cause>,
}

impl Health {
    pub(super) fn new(endpoint: Endpoint, transport: &Transport) -> Self {
        let sentences = match transport {
            Transport::Http(_) | Transport::Grpc(_) => &OTLP,
            Transport::Webhook(_) => &WEBHOOK,
        };
        Self { endpoint, sentences, failing: None, partial: None }
    }

    /// An attempt failed and will be repeated, or the request was refused.
    pub(super) fn failed(&mut self, cause: &Cause, again: bool, now: Instant) {
        if !self.should_log(discriminant(cause), now) {
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

    fn should_log(&mut self, cause: Discriminant<Cause>, now: Instant) -> bool {
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
    use crate::otlp::settings::{RawOtlp, Settings, Signal};

    fn health() -> Health {
        let raw = RawOtlp::default();
        let settings = Settings::resolve(Signal::Metrics, &raw, &raw, &|_| None).unwrap();
        Health::new(settings.endpoint.clone(), &Transport::otlp(&settings))
    }

    #[test]
    fn a_cause_is_logged_once_until_sending_works_again() {
        let (mut health, start) = (health(), Instant::now());
        let refused = discriminant(&Cause::Refused);
        let later = start + Duration::from_hours(1);
        let news = [health.should_log(refused, start), health.should_log(refused, later)];
        assert_eq!(news, [true, false]);
        health.worked(later);
        assert!(health.should_log(refused, later));
    }

    #[test]
    fn another_cause_is_logged_once_a_minute() {
        let (mut health, start) = (health(), Instant::now());
        let (refused, lost) = (discriminant(&Cause::Refused), discriminant(&Cause::UnknownCa));
        let at = |seconds| start + Duration::from_secs(seconds);
        let news =
            [(refused, 0), (lost, 1), (refused, 2), (lost, 60), (refused, 61), (refused, 120)]
                .map(|(cause, seconds)| health.should_log(cause, at(seconds)));
        assert_eq!(news, [true, false, false, true, false, true]);
    }
}

//! Writes batches of lines to a terminal, a pipe or a file, on a thread of its own: a reader that has
//! stopped or a disk that hangs takes no time from the tick or from other sinks.
//!
//! What waits is bounded in bytes; the oldest batch falls out of a full queue and is counted. The
//! batch that is being written is not in the queue, so memory is bounded by the limit plus one batch.

use super::Report;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Bytes that may wait. One batch that is larger waits alone: 50,000 series have 17 MB of lines.
const MAX_WAITING: usize = 8 << 20;

/// A thread that writes, and the queue before it. The thread ends when this is dropped, after its
/// current write.
#[derive(Debug)]
pub(super) struct WriterThread {
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// The lines that are being written.
    in_flight: u64,
    /// A written batch's memory, for the next one.
    spare: Vec<u8>,
    /// Nothing more is written.
    stopped: bool,
    report: Report,
}

#[derive(Debug)]
struct Batch {
    text: Vec<u8>,
    lines: u64,
}

impl WriterThread {
    /// Starts it.
    pub(super) fn start(thread: &str, out: impl Write + Send + 'static) -> io::Result<Self> {
        let queue = Arc::<Queue>::default();
        let theirs = Arc::clone(&queue);
        thread::Builder::new().name(thread.to_owned()).spawn(move || theirs.run(out))?;
        Ok(Self { queue })
    }

    /// Hands these lines to the thread, and leaves an empty buffer for the next ones.
    pub(super) fn push(&self, text: &mut Vec<u8>, lines: u64) {
        let mut waiting = self.queue.waiting();
        if lines == 0 {
            return;
        }
        let spare = std::mem::take(&mut waiting.spare);
        let text = std::mem::replace(text, spare);
        waiting.bytes += text.len();
        waiting.batches.push_back(Batch { text, lines });
        while waiting.bytes > MAX_WAITING && waiting.batches.len() > 1 {
            let Some(oldest) = waiting.pop() else { break };
            waiting.report.queue_full += oldest.lines;
        }
        drop(waiting);
        self.queue.changed.notify_all();
    }

    /// Waits until all is written or `deadline` has passed; the rest is dropped and counted.
    pub(super) fn flush(&self, deadline: Instant) {
        let mut waiting = self.queue.waiting();
        while waiting.in_flight > 0 || !waiting.batches.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.queue.changed.wait_for(&mut waiting, left);
        }
        waiting.stop();
        drop(waiting);
        self.queue.changed.notify_all();
    }

    /// The outcome of the lines so far.
    pub(super) fn report(&self) -> Report {
        let waiting = self.queue.waiting();
        let queued: u64 = waiting.batches.iter().map(|batch| batch.lines).sum();
        Report { queued: queued + waiting.in_flight, ..waiting.report }
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.queue.waiting().stop();
        self.queue.changed.notify_all();
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }

    fn run(&self, mut out: impl Write) {
        let (mut failing, mut closed) = (false, false);
        while let Some(batch) = self.next() {
            let tried = !closed;
            let written = tried && {
                let result = out.write_all(&batch.text).and_then(|()| out.flush());
                // The reader has closed the pipe: nothing more can be written.
                closed =
                    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
                log(result.as_ref().err().filter(|_| !closed), &mut failing);
                result.is_ok()
            };
            self.finish(batch, tried, written);
        }
    }

    /// Waits for the oldest batch; `None` when nothing more is to be written.
    fn next(&self) -> Option<Batch> {
        let mut waiting = self.waiting();
        loop {
            if let Some(batch) = waiting.pop() {
                waiting.in_flight = batch.lines;
                return Some(batch);
            }
            if waiting.stopped {
                return None;
            }
            self.changed.wait(&mut waiting);
        }
    }

    fn finish(&self, mut batch: Batch, tried: bool, written: bool) {
        let mut waiting = self.waiting();
        // What `stop` has counted as lost may still have been written: lost is the safer word.
        let in_flight = std::mem::take(&mut waiting.in_flight);
        waiting.report.requests += u64::from(tried);
        if written {
            waiting.report.accepted += in_flight;
            waiting.report.bytes += batch.text.len() as u64;
        } else {
            waiting.report.undelivered += in_flight;
        }
        batch.text.clear();
        waiting.spare = batch.text;
        drop(waiting);
        self.changed.notify_all();
    }
}

impl Waiting {
    fn pop(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.text.len();
        Some(batch)
    }

    fn stop(&mut self) {
        self.stopped = true;
        self.report.undelivered += std::mem::take(&mut self.in_flight);
        while let Some(batch) = self.pop() {
            self.report.undelivered += batch.lines;
        }
    }
}

/// Says once when writing begins to fail, and once when it works again. A closed pipe is not a failure:
/// `gpuwho collect | head`.
fn log(error: Option<&io::Error>, failing: &mut bool) {
    match error {
        Some(error) if !std::mem::replace(failing, true) => {
            tracing::warn!(%error, "cannot write points and events; they are lost until it works again");
        }
        None if std::mem::take(failing) => tracing::info!("points and events are written again"),
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    /// Takes a batch when it is allowed to, with this outcome.
    struct Slow {
        begun: Sender<usize>,
        outcomes: Receiver<io::Result<()>>,
    }

    impl Write for Slow {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.begun.send(text.len()).unwrap();
            self.outcomes.recv().unwrap_or(Ok(())).map(|()| text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (WriterThread, Receiver<usize>, Sender<io::Result<()>>) {
        let (begun, begins) = channel();
        let (outcome, outcomes) = channel();
        (WriterThread::start("test", Slow { begun, outcomes }).unwrap(), begins, outcome)
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    #[test]
    fn a_writer_that_hangs_keeps_nobody_waiting_and_the_oldest_lines_fall_out() {
        let (thread, begins, outcome) = slow();
        let mut line = vec![b'x'; 10];
        thread.push(&mut line, 1);
        assert_eq!(begins.recv(), Ok(10));
        // It hangs in its first write; four batches of 3 MiB are more than may wait.
        for lines in [2, 3, 4, 5] {
            let mut text = vec![b'x'; 3 << 20];
            thread.push(&mut text, lines);
            assert!(text.is_empty());
        }
        let report = thread.report();
        assert_eq!((report.queued, report.queue_full, report.accepted), (1 + 4 + 5, 2 + 3, 0));
        for _ in 0..3 {
            outcome.send(Ok(())).unwrap();
        }
        thread.flush(later());
        let report = thread.report();
        assert_eq!((report.queued, report.accepted, report.requests), (0, 10, 3));
        assert_eq!(report.bytes, 10 + (6 << 20));
    }

    #[test]
    fn one_batch_above_the_limit_waits_alone() {
        let (thread, begins, _outcome) = slow();
        thread.push(&mut vec![b'x'], 1);
        assert_eq!(begins.recv(), Ok(1));
        thread.push(&mut vec![b'x'; MAX_WAITING + 1], 7);
        assert_eq!(thread.report().queued, 8);
        thread.push(&mut vec![b'x'], 1);
        assert_eq!((thread.report().queued, thread.report().queue_full), (2, 7));
    }

    #[test]
    fn what_is_not_written_by_the_deadline_is_counted_as_lost_once() {
        let (thread, begins, outcome) = slow();
        thread.push(&mut vec![b'x'], 1);
        assert_eq!(begins.recv(), Ok(1));
        thread.push(&mut vec![b'x'; 2], 2);
        thread.flush(Instant::now());
        outcome.send(Ok(())).unwrap();
        drop(outcome);
        assert!(begins.recv().is_err(), "the thread has ended");
        let report = thread.report();
        assert_eq!((report.undelivered, report.accepted, report.queued), (3, 0, 0));
    }

    #[test]
    fn a_write_that_fails_loses_its_batch_only() {
        let (thread, _begins, outcome) = slow();
        outcome.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        outcome.send(Ok(())).unwrap();
        thread.push(&mut vec![b'x'], 1);
        thread.push(&mut vec![b'x'; 2], 2);
        thread.flush(later());
        let report = thread.report();
        assert_eq!((report.undelivered, report.accepted, report.requests), (1, 2, 2));
    }

    #[test]
    fn broken_pipe_closes_the_writer_and_what_was_not_written_is_counted() {
        let (thread, begins, outcome) = slow();
        outcome.send(Err(io::ErrorKind::BrokenPipe.into())).unwrap();
        thread.push(&mut vec![b'x'], 1);
        thread.push(&mut vec![b'x'; 2], 1);
        thread.flush(later());
        assert_eq!((begins.recv(), begins.try_recv().is_err()), (Ok(1), true));
        assert_eq!((thread.report().undelivered, thread.report().requests), (2, 1));
    }

    #[test]
    fn a_thread_whose_sink_is_dropped_ends() {
        let (thread, begins, outcome) = slow();
        drop(thread);
        drop(outcome);
        assert!(begins.recv().is_err());
    }
}

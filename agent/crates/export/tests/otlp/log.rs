//! What the sink logged, by all tests of this process; each looks for its own receiver's port.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, Once};

static LINES: Mutex<String> = Mutex::new(String::new());
static WRITTEN: Condvar = Condvar::new();

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        WRITTEN.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Captures the log from now on.
pub(crate) fn capture() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(|| Lines)
            .with_max_level(tracing::Level::INFO)
            .init();
    });
}

/// The lines about the receiver at `port`, waiting for the first one with `words`.
pub(crate) fn wait_for(port: u16, words: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap();
    let missing = |lines: &mut String| !about(lines, port).iter().any(|line| line.contains(words));
    let (lines, timeout) = WRITTEN.wait_timeout_while(lines, crate::TIMEOUT, missing).unwrap();
    let found = about(&lines, port);
    // A failed test must not poison the log for the others.
    drop(lines);
    assert!(!timeout.timed_out(), "no `{words}` in {found:#?}");
    found
}

/// The lines about the receiver at `port` so far.
pub(crate) fn lines(port: u16) -> Vec<String> {
    about(&LINES.lock().unwrap(), port)
}

fn about(lines: &str, port: u16) -> Vec<String> {
    let port = format!(":{port}/");
    lines.lines().filter(|line| line.contains(&port)).map(str::to_owned).collect()
}

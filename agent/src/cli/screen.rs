//! Standard output as a person's terminal: its size, and whether it takes colours.

use anyhow::Context as _;
use gpuwho_model::screen::Screen;
use gpuwho_model::text::printable_lines;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use terminal_size::{Height, Width, terminal_size_of};

/// Moves to the top left, and removes what is behind the end of a line and of the text (ECMA-48).
const HOME: &str = "\x1b[H";
const END_OF_LINE: &str = "\x1b[K\n";
const END_OF_SCREEN: &str = "\x1b[J";

/// Whether there is still a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Done,
    ReaderGone,
}

/// A terminal that does not say how wide it is.
const DEFAULT_WIDTH: usize = 80;

/// A terminal as wide as it is; else as wide as `COLUMNS` says, which `watch` sets; else as wide as
/// may be.
pub(super) fn of_stdout() -> Screen {
    let stdout = io::stdout();
    let measured = terminal_size_of(&stdout).map(|(Width(width), _)| width.into());
    let from_environment = || std::env::var("COLUMNS").ok().and_then(|width| width.parse().ok());
    let default = if stdout.is_terminal() { DEFAULT_WIDTH } else { usize::MAX };
    Screen::new(measured.or_else(from_environment).unwrap_or(default), colours(&stdout))
}

/// Colours are for a terminal whose user has not said no (no-color.org).
pub(super) fn colours(stream: &impl io::IsTerminal) -> bool {
    let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !is_refused && !is_dumb
}

/// Writes text that has nothing in it that a terminal should not get. A reader that went away
/// (`| head`) is not an error.
pub(super) fn write(text: &str) -> anyhow::Result<Written> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Written::Done),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Written::ReaderGone),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// Writes a text over the one before, as far as the terminal is high; to a file, behind it.
pub(super) fn write_frame(text: &str) -> anyhow::Result<Written> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return write(&format!("{text}\n"));
    }
    let height = terminal_size_of(&stdout).map_or(usize::MAX, |(_, Height(height))| height.into());
    let lines = text.lines().take(height.saturating_sub(1));
    let frame: String = lines.flat_map(|line| [line, END_OF_LINE]).collect();
    write(&format!("{HOME}{frame}{END_OF_SCREEN}"))
}

/// Says something beside the answer; a closed standard error is nobody's concern.
pub(super) fn remark(text: &str) {
    let _ = writeln!(io::stderr(), "gpuwho: {}", printable_lines(text));
}

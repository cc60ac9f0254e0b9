//! `gpuwho top`: the accelerators and their owners on a terminal, again and again.
//!
//! One thread asks the agent, or reads without one; this one draws and heeds the keys. The terminal is as
//! it was after an end of any kind: the library's panic hook restores it, and signals end the loop.

mod feed;
mod filter;
#[cfg(test)]
mod fixture;
mod history;
mod keys;
mod rows;
mod screen;
mod state;
#[cfg(test)]
mod tests;
mod tree;

use crate::who::HostReport;
use feed::Update;
use gpuwho_pipeline::event::recent::EventReport;
use gpuwho_pipeline::health::report::HealthReport;
use keys::Heed;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, DisableMouseCapture, EnableMouseCapture};
use ratatui::crossterm::execute;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGTERM};
use state::State;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the loop waits for a key before it looks for news.
const TURN: Duration = Duration::from_millis(100);
/// What `poll` says of a terminal whose other end is closed.
const GONE: PollFlags = PollFlags::HUP.union(PollFlags::ERR).union(PollFlags::NVAL);
/// Keys that are heeded before the screen is drawn again.
const KEYS_IN_A_TURN: usize = 64;

/// What one look gives.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Devices, processes, engines and sources.
    pub who: HostReport,
    /// The health of the devices, where an agent judges it.
    pub health: Option<HealthReport>,
    /// The last events, where an agent keeps them.
    pub events: Option<EventReport>,
}

/// How it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time between two looks.
    pub every: Duration,
    /// Whether there are colours.
    pub is_coloured: bool,
    /// Whether only ASCII is drawn.
    pub is_ascii: bool,
}

/// Why there is no screen.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// Nobody to look at it.
    #[error(
        "`gpuwho top` needs a terminal; for files and pipes there are `gpuwho` and `gpuwho --json`"
    )]
    NoTerminal,
    /// The terminal.
    #[error("the terminal: {0}")]
    Terminal(#[from] io::Error),
}

/// Shows what `look` gives until the user ends it.
pub fn run(
    options: Options,
    filter: &str,
    look: impl FnMut() -> Result<Look, String> + Send + 'static,
) -> Result<(), TopError> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    let is_ended = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGTERM, Arc::clone(&is_ended))?;
    // The terminal is gone: there is nothing to restore, and reading it would never end.
    signal_hook::flag::register_conditional_shutdown(SIGHUP, 1, Arc::new(AtomicBool::new(true)))?;
    let mut state = State::new(options, filter);
    let mut terminal = start()?;
    let feed = feed::start(options.every, look);
    let shown = show(&mut terminal, &mut state, &feed, &is_ended);
    stop();
    Ok(shown?)
}

/// Waits a turn for a key; whether nobody is at the other end of the terminal any more.
fn is_gone() -> io::Result<bool> {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut polled, Timespec::try_from(TURN).ok().as_ref()) {
        Ok(_) => Ok(polled.iter().any(|one| one.revents().intersects(GONE))),
        // A change of the size, as a signal.
        Err(Errno::INTR) => Ok(false),
        Err(why) => Err(why.into()),
    }
}

fn start() -> io::Result<DefaultTerminal> {
    let terminal = ratatui::try_init()?;
    // Without a mouse there are keys.
    let _ = execute!(io::stdout(), EnableMouseCapture);
    Ok(terminal)
}

fn stop() {
    let _ = execute!(io::stdout(), DisableMouseCapture);
    ratatui::restore();
}

fn show(
    terminal: &mut DefaultTerminal,
    state: &mut State,
    feed: &feed::Feed,
    is_ended: &AtomicBool,
) -> io::Result<()> {
    let mut is_changed = true;
    while !is_ended.load(Ordering::Relaxed) {
        while let Some(update) = feed.next() {
            is_changed = true;
            match update {
                Update::Look(look) => state.take(*look, Instant::now()),
                Update::Failed(why) => state.fail(why),
            }
        }
        if is_changed {
            terminal.draw(|frame| screen::draw(frame, state))?;
            is_changed = false;
        }
        if !event::poll(Duration::ZERO)? {
            if is_gone()? {
                return Ok(());
            }
            continue;
        }
        for _ in 0..KEYS_IN_A_TURN {
            is_changed = true;
            match keys::heed(state, &event::read()?) {
                Heed::Stay => {}
                Heed::Leave => return Ok(()),
                Heed::Suspend => {
                    stop();
                    // The shell goes on; when it lets this process go on, so does the screen.
                    let _ = kill_process(getpid(), Signal::TSTP);
                    *terminal = start()?;
                    terminal.clear()?;
                }
            }
            if !event::poll(Duration::ZERO)? {
                break;
            }
        }
    }
    Ok(())
}

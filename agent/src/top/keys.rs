//! What the keys and the mouse do.

use super::filter::MAX_LEN;
use super::rows;
use super::state::{State, Tab};
use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

/// The keys and what they do, for the help.
pub(super) const HELP: &[(&str, &str)] = &[
    ("1-5, Tab, Shift-Tab", "page"),
    ("j k, arrows, wheel", "row up and down"),
    ("g G, Home End, PgUp PgDn", "first, last, by pages"),
    ("Enter, click", "show or hide the parts of a row"),
    ("/", "filter: temp>85 & user==alice, ns:serving | job:123, or part of a name"),
    ("", "fields: gpu vendor model state util mem power temp user ns pod job unit cmd pid"),
    ("s", "order of the owners: memory, util, GPUs, name"),
    ("Space", "hold the screen; again: go on"),
    ("Esc", "close this, or clear the filter"),
    ("q, Ctrl-C", "quit; Ctrl-Z: suspend"),
];

/// What becomes of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heed {
    Stay,
    Leave,
    Suspend,
}

/// Does what an event of the terminal asks for.
pub(super) fn heed(state: &mut State, event: &Event) -> Heed {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => {
            let done = key_of(state, *key);
            // The next key may come before the screen is drawn.
            state.keys = rows::page(state, state.wide).keys();
            return done;
        }
        Event::Mouse(mouse) => mouse_of(state, *mouse),
        Event::Paste(text) if state.is_typing => {
            text.chars().for_each(|character| type_one(state, character));
        }
        _ => {}
    }
    Heed::Stay
}

fn key_of(state: &mut State, key: KeyEvent) -> Heed {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Heed::Leave,
            KeyCode::Char('z') => Heed::Suspend,
            _ => Heed::Stay,
        };
    }
    if state.is_typing {
        typed(state, key.code);
        return Heed::Stay;
    }
    let (row, _) = state.cursor();
    let (page, last) = (state.room.max(1), state.keys.len().saturating_sub(1));
    match key.code {
        KeyCode::Char('q') => return Heed::Leave,
        KeyCode::Char('?') | KeyCode::F(1) => state.has_help = !state.has_help,
        KeyCode::Esc if state.has_help => state.has_help = false,
        KeyCode::Esc => {
            state.typed.clear();
            state.apply_filter();
        }
        KeyCode::Char('/') => state.is_typing = true,
        KeyCode::Char(' ') => state.is_paused = !state.is_paused,
        KeyCode::Char('s') => state.order = state.order.next(),
        KeyCode::Char('j') | KeyCode::Down => state.choose(row.saturating_add(1)),
        KeyCode::Char('k') | KeyCode::Up => state.choose(row.saturating_sub(1)),
        KeyCode::Char('g') | KeyCode::Home => state.choose(0),
        KeyCode::Char('G') | KeyCode::End => state.choose(last),
        KeyCode::PageDown => state.choose(row.saturating_add(page)),
        KeyCode::PageUp => state.choose(row.saturating_sub(page)),
        KeyCode::Enter => state.toggle(),
        KeyCode::Tab => turn(state, 1),
        KeyCode::BackTab => turn(state, Tab::ALL.len() - 1),
        KeyCode::Char(digit) => {
            let page = digit.to_digit(10).and_then(|digit| (digit as usize).checked_sub(1));
            if let Some(tab) = page.and_then(|page| Tab::ALL.get(page)) {
                state.tab = *tab;
            }
        }
        _ => {}
    }
    Heed::Stay
}

/// Goes on by so many pages.
fn turn(state: &mut State, pages: usize) {
    let place = Tab::ALL.iter().position(|tab| *tab == state.tab).unwrap_or(0);
    if let Some(tab) = Tab::ALL.get((place + pages) % Tab::ALL.len()) {
        state.tab = *tab;
    }
}

/// A key while the filter is typed: it holds from each letter on.
fn typed(state: &mut State, key: KeyCode) {
    match key {
        KeyCode::Enter => state.is_typing = false,
        KeyCode::Esc => {
            state.is_typing = false;
            state.typed.clear();
            state.apply_filter();
        }
        KeyCode::Backspace => {
            state.typed.pop();
            state.apply_filter();
        }
        KeyCode::Char(character) => type_one(state, character),
        _ => {}
    }
}

fn type_one(state: &mut State, character: char) {
    if !character.is_control() && state.typed.len() + character.len_utf8() <= MAX_LEN {
        state.typed.push(character);
        state.apply_filter();
    }
}

fn mouse_of(state: &mut State, mouse: MouseEvent) {
    let (row, first) = state.cursor();
    match mouse.kind {
        MouseEventKind::ScrollDown => state.choose(row.saturating_add(3)),
        MouseEventKind::ScrollUp => state.choose(row.saturating_sub(3)),
        MouseEventKind::Down(MouseButton::Left) => {
            let line = usize::from(mouse.row).checked_sub(state.first_line.into());
            let Some(line) = line.filter(|line| *line < state.room) else { return };
            if first + line < state.keys.len() {
                let again = first + line == row;
                state.choose(first + line);
                if again {
                    state.toggle();
                }
            }
        }
        _ => {}
    }
}

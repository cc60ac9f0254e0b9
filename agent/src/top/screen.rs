//! Draws the screen: a line about the host, the pages, the rows of one of them, and a line about what
//! was chosen or is wrong.

use super::keys::HELP;
use super::rows::{self, Row};
use super::state::{State, Tab};
use crate::who::table::row;
use gpuwho_model::screen::{clean, elide, width};
use gpuwho_model::text::plural;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};
use std::time::Duration;

/// Of what kind a cell is. The colours are of Okabe and Ito's palette, which differ for everybody; what
/// they say stands in words or numbers too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mark {
    #[default]
    Plain,
    Heading,
    Dim,
    Good,
    Warning,
    Bad,
    Bar,
}

impl Mark {
    fn style(self, is_coloured: bool) -> Style {
        let style = Style::new();
        match self {
            Self::Plain => style,
            Self::Heading => style.add_modifier(Modifier::BOLD),
            Self::Bad if !is_coloured => style.add_modifier(Modifier::BOLD),
            _ if !is_coloured => style,
            Self::Dim => style.add_modifier(Modifier::DIM),
            Self::Good => style.fg(Color::Indexed(36)),
            Self::Warning => style.fg(Color::Indexed(214)),
            Self::Bad => style.fg(Color::Indexed(202)).add_modifier(Modifier::BOLD),
            Self::Bar => style.fg(Color::Indexed(74)),
        }
    }
}

/// A look older than so many times the pause between two is old.
const OLD: u32 = 3;

/// Draws everything, on a screen of any size.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let area = frame.area();
    let [title, tabs, header, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    let wide = usize::from(area.width);
    let is_coloured = state.options.is_coloured;
    let page = rows::page(state, wide);
    state.keys = page.keys();
    state.wide = wide;
    state.room = body.height.into();
    state.first_line = body.y;
    // What went away may have been chosen.
    state.choose(state.cursor().0);
    let (chosen, first) = state.cursor();
    put(frame, title, Line::styled(about_host(state, wide), Mark::Heading.style(is_coloured)));
    put(frame, tabs, pages(state, wide));
    put(frame, header, Line::styled(page.header, Mark::Dim.style(is_coloured)));
    let shown = page.rows.iter().enumerate().skip(first).take(state.room);
    let lines = shown.map(|(at, row)| line(row, at == chosen, is_coloured));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), body);
    let below = page.rows.len().saturating_sub(first + state.room);
    put(frame, foot, footer(state, below, wide));
    if state.has_help {
        help(frame, area, is_coloured);
    }
}

fn put(frame: &mut Frame<'_>, area: Rect, line: Line<'_>) {
    frame.render_widget(Paragraph::new(line), area);
}

fn line(row: &Row, is_chosen: bool, is_coloured: bool) -> Line<'_> {
    let cells = row.cells.iter();
    let spans = cells.map(|(text, mark)| Span::styled(text.as_str(), mark.style(is_coloured)));
    let line = Line::from(spans.collect::<Vec<_>>());
    if is_chosen { line.style(Style::new().add_modifier(Modifier::REVERSED)) } else { line }
}

/// The host and its sums; what has no room is left out, the last first.
fn about_host(state: &State, wide: usize) -> String {
    let Some(look) = &state.look else { return elide("gpuwho top", wide).into_owned() };
    let who = &look.who;
    let totals = &who.totals;
    let gib = |bytes: Option<i64>| bytes.map(row::gib);
    let memory = match (gib(totals.memory_used_bytes), gib(totals.memory_limit_bytes)) {
        (Some(used), Some(limit)) => Some(format!("{used:.0}/{limit:.0} GiB")),
        (Some(used), None) => Some(format!("{used:.0} GiB")),
        (None, _) => None,
    };
    let watts = totals.power_watts.map(|watts| format!("{watts:.0} W"));
    let missing = totals.devices - totals.devices_ok.min(totals.devices);
    let parts = [
        Some(clean(&who.host).into_owned()),
        Some(plural(totals.devices, "GPU", "GPUs")),
        (missing > 0).then(|| format!("{missing} not answering")),
        watts,
        memory,
        Some(plural(totals.processes, "process", "processes")),
        (who.hidden_processes > 0)
            .then(|| format!("{} of other users hidden", who.hidden_processes)),
    ];
    let mut text = String::new();
    for part in parts.into_iter().flatten() {
        if width(&text) + width(&part) + 2 <= wide {
            text.push_str(if text.is_empty() { "" } else { "  " });
            text.push_str(&part);
        }
    }
    text
}

/// The pages, the shown one marked also without colours.
fn pages(state: &State, wide: usize) -> Line<'static> {
    let all = || Tab::ALL.into_iter().enumerate();
    let words = |is_long: bool| {
        let word = move |(at, tab): (usize, Tab)| {
            let title = if is_long || tab == state.tab { tab.title() } else { "" };
            let text = format!("{} {title}", at + 1).trim_end().to_owned();
            let text = if tab == state.tab { format!("[{text}]") } else { format!(" {text} ") };
            (text, tab == state.tab)
        };
        all().map(word).collect::<Vec<_>>()
    };
    let long = words(true);
    let is_wide = long.iter().map(|(text, _)| width(text)).sum::<usize>() <= wide;
    let words = if is_wide { long } else { words(false) };
    let style = |is_shown| {
        let mark = if is_shown { Mark::Heading } else { Mark::Dim };
        mark.style(state.options.is_coloured)
    };
    words.into_iter().map(|(text, is_shown)| Span::styled(text, style(is_shown))).collect()
}

/// What is typed, wrong, held or below; else the commonest keys.
fn footer(state: &State, below: usize, wide: usize) -> Line<'static> {
    let of = |mark: Mark, text: String| {
        let text = elide(&clean(&text), wide).into_owned();
        Line::styled(text, mark.style(state.options.is_coloured))
    };
    if state.is_typing {
        let why = state.mistake.as_ref().map_or(String::new(), |why| format!("  ({why})"));
        return of(Mark::Plain, format!("/{}_{why}", state.typed));
    }
    let age = state.came.map(|came| came.elapsed());
    let is_old = |age: &Duration| *age > state.options.every * OLD;
    let mut parts = Vec::new();
    if let Some(mistake) = &state.mistake {
        parts.push(format!("filter: {mistake}"));
    } else if !state.filter.is_empty() {
        parts.push(format!("filter: {} (Esc clears it)", state.typed.trim()));
    }
    if state.is_paused {
        parts.push("held; Space goes on".to_owned());
    } else if let Some(age) = age.filter(is_old) {
        parts.push(format!("{} s old", age.as_secs()));
    }
    let is_bad = state.failure.is_some() || state.mistake.is_some();
    parts.extend(state.failure.clone());
    if below > 0 {
        parts.push(plural(below, "row below", "rows below"));
    }
    if parts.is_empty() || (parts.len() == 1 && below > 0) {
        parts.push("? help  / filter  s order  Enter parts  Space hold  q quit".to_owned());
    }
    of(if is_bad { Mark::Bad } else { Mark::Dim }, parts.join("  "))
}

fn help(frame: &mut Frame<'_>, area: Rect, is_coloured: bool) {
    let keys = HELP.iter().map(|(keys, _)| width(keys)).max().unwrap_or(0);
    let texts = HELP.iter().map(|(_, text)| width(text)).max().unwrap_or(0);
    let size = |length: usize, most: u16| u16::try_from(length).unwrap_or(most).min(most);
    let (wide, high) = (size(keys + texts + 6, area.width), size(HELP.len() + 2, area.height));
    let middle = Rect {
        x: area.x + (area.width - wide) / 2,
        y: area.y + (area.height - high) / 2,
        width: wide,
        height: high,
    };
    let line = |(key, text): &(&'static str, &'static str)| {
        let key = Span::styled(format!(" {key:<keys$}  "), Mark::Heading.style(is_coloured));
        Line::from(vec![key, Span::raw(*text)])
    };
    let lines: Vec<_> = HELP.iter().map(line).collect();
    frame.render_widget(Clear, middle);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), middle);
}

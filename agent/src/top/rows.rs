//! The rows of each page, as cells of text: what is said at which width.

mod devices;
mod owners;
mod rest;

use super::screen::Mark;
use super::state::{State, Tab};
use crate::who::table::row;
use gpuwho_model::screen::{Screen, clean, left, right};

/// A line of a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    /// Names it, where it has parts or a past.
    pub(super) key: Option<String>,
    /// Cells in order; the spaces between them are theirs.
    pub(super) cells: Vec<(String, Mark)>,
}

/// What a page shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Page {
    pub(super) header: String,
    pub(super) rows: Vec<Row>,
}

impl Page {
    pub(super) fn keys(&self) -> Vec<Option<String>> {
        self.rows.iter().map(|row| row.key.clone()).collect()
    }
}

impl Row {
    fn new(key: Option<&String>) -> Self {
        Self { key: key.cloned(), cells: Vec::new() }
    }

    /// A cell of this width, with a space behind it.
    fn left(mut self, text: &str, wide: usize, mark: Mark) -> Self {
        if wide > 0 {
            self.cells.push((format!("{} ", left(&clean(text), wide)), mark));
        }
        self
    }

    /// The same for a number.
    fn right(mut self, text: &str, wide: usize, mark: Mark) -> Self {
        if wide > 0 {
            self.cells.push((format!("{} ", right(&clean(text), wide)), mark));
        }
        self
    }

    /// A line of one text.
    fn text(text: &str, mark: Mark) -> Self {
        Self { key: None, cells: vec![(clean(text).into_owned(), mark)] }
    }
}

/// The page that is shown, for so many columns.
pub(super) fn page(state: &State, wide: usize) -> Page {
    let Some(look) = &state.look else {
        let why = state.failure.as_deref().unwrap_or("reading …");
        return Page { header: String::new(), rows: wrap(0, why, wide, Mark::Plain) };
    };
    match state.tab {
        Tab::Devices => devices::page(state, look, wide),
        Tab::Owners => owners::page(state, wide),
        Tab::Engines => rest::engines(look, wide),
        Tab::Health => rest::health(look, wide),
        Tab::Agent => rest::agent(look, wide),
    }
}

/// A text over as many lines as it needs, each behind so many blanks.
fn wrap(indent: usize, text: &str, wide: usize, mark: Mark) -> Vec<Row> {
    Screen::new(wide, false).wrap(indent, text).lines().map(|line| Row::text(line, mark)).collect()
}

/// A header in the columns of the rows: names and widths, a number's on the right.
fn header(columns: &[(&str, usize, bool)]) -> String {
    let cell = |(name, wide, is_number): &(&str, usize, bool)| match (*wide, *is_number) {
        (0, _) => String::new(),
        (wide, true) => format!("{} ", right(name, wide)),
        (wide, false) => format!("{} ", left(name, wide)),
    };
    columns.iter().map(cell).collect()
}

fn percent(part: Option<f64>) -> String {
    part.map_or("-".to_owned(), row::percent)
}

fn gib(bytes: Option<i64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| format!("{:.1}G", row::gib(bytes)))
}

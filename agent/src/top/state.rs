//! What `top` shows and how: the last look, the histories, and what the user has chosen.

use super::filter::Filter;
use super::history::History;
use super::tree::{self, Node, Order};
use super::{Look, Options};
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// Devices and owners whose past is kept; more than a host has.
const MAX_HISTORIES: usize = 4096;

/// A page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Devices,
    Owners,
    Engines,
    Health,
    Agent,
}

impl Tab {
    pub(super) const ALL: [Self; 5] =
        [Self::Devices, Self::Owners, Self::Engines, Self::Health, Self::Agent];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Devices => "Devices",
            Self::Owners => "Owners",
            Self::Engines => "Engines",
            Self::Health => "Health",
            Self::Agent => "Agent",
        }
    }
}

/// What there is to draw from.
#[derive(Debug)]
pub(super) struct State {
    pub(super) options: Options,
    /// The last look.
    pub(super) look: Option<Look>,
    /// When it came.
    pub(super) came: Option<Instant>,
    /// Why there is no newer one.
    pub(super) failure: Option<String>,
    pub(super) tab: Tab,
    /// The chosen row of each page, and the first that is shown.
    pub(super) cursors: [(usize, usize); Tab::ALL.len()],
    pub(super) order: Order,
    pub(super) filter: Filter,
    /// The filter as typed.
    pub(super) typed: String,
    /// Whether it is being typed.
    pub(super) is_typing: bool,
    /// What is wrong with it.
    pub(super) mistake: Option<String>,
    pub(super) is_paused: bool,
    pub(super) has_help: bool,
    /// Keys of rows whose parts are not as at first: shown or hidden.
    pub(super) toggled: HashSet<String>,
    pub(super) histories: HashMap<String, History>,
    /// Keys of the rows of the page, and how many rows fit.
    pub(super) keys: Vec<Option<String>>,
    pub(super) room: usize,
    /// The line of the screen at which they begin.
    pub(super) first_line: u16,
    /// Columns of the screen.
    pub(super) wide: usize,
}

impl State {
    pub(super) fn new(options: Options, filter: &str) -> Self {
        let mut state = Self {
            options,
            look: None,
            came: None,
            failure: None,
            tab: Tab::Devices,
            cursors: Default::default(),
            order: Order::default(),
            filter: Filter::default(),
            typed: filter.to_owned(),
            is_typing: false,
            mistake: None,
            is_paused: false,
            has_help: false,
            toggled: HashSet::new(),
            histories: HashMap::new(),
            keys: Vec::new(),
            room: 0,
            first_line: 0,
            wide: 0,
        };
        state.apply_filter();
        state
    }

    /// Takes a look; while paused the screen stays and the past goes on.
    pub(super) fn take(&mut self, look: Look, now: Instant) {
        self.remember(&look);
        self.failure = None;
        if !self.is_paused || self.look.is_none() {
            self.look = Some(look);
            self.came = Some(now);
        }
    }

    /// There is no news.
    pub(super) fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }

    /// The tree of owners under the filter.
    pub(super) fn tree(&self) -> Node {
        let none = Node::default;
        self.look
            .as_ref()
            .map_or_else(none, |look| tree::build(&look.who, &self.filter, self.order))
    }

    /// Takes the typed filter, or says what is wrong with it and keeps the one before.
    pub(super) fn apply_filter(&mut self) {
        match Filter::parse(&self.typed) {
            Ok(filter) => {
                self.filter = filter;
                self.mistake = None;
            }
            Err(why) => self.mistake = Some(why),
        }
    }

    fn remember(&mut self, look: &Look) {
        let mut values: HashMap<String, Option<f64>> = HashMap::new();
        for device in &look.who.devices {
            values.insert(device.uuid.clone(), device.utilization);
        }
        let owners = tree::build(&look.who, &Filter::default(), Order::Name);
        for group in &owners.children {
            for owner in std::iter::once(group).chain(&group.children) {
                let devices = owner.devices.len().max(1) as f64;
                values.insert(owner.key.clone(), owner.busy.map(|busy| busy / devices));
            }
        }
        // What is gone has no past.
        self.histories.retain(|key, _| values.contains_key(key));
        for (key, value) in values {
            if self.histories.len() < MAX_HISTORIES || self.histories.contains_key(&key) {
                self.histories.entry(key).or_default().push(value);
            }
        }
    }

    /// What a value was, as a line.
    pub(super) fn past(&self, key: &str, characters: usize) -> String {
        let none = || " ".repeat(characters);
        let line = |history: &History| history.line(characters, self.options.is_ascii);
        self.histories.get(key).map_or_else(none, line)
    }

    fn place(&self) -> usize {
        Tab::ALL.iter().position(|tab| *tab == self.tab).unwrap_or(0)
    }

    /// The chosen row, and the first that is shown.
    pub(super) fn cursor(&self) -> (usize, usize) {
        self.cursors.get(self.place()).copied().unwrap_or_default()
    }

    /// Chooses a row, as far as there is one, and shows it.
    pub(super) fn choose(&mut self, row: usize) {
        let row = row.min(self.keys.len().saturating_sub(1));
        let (place, room) = (self.place(), self.room.max(1));
        if let Some((chosen, first)) = self.cursors.get_mut(place) {
            *chosen = row;
            *first = (*first).clamp((row + 1).saturating_sub(room), row);
        }
    }

    /// Shows or hides the parts of the chosen row.
    pub(super) fn toggle(&mut self) {
        let (row, _) = self.cursor();
        if let Some(Some(key)) = self.keys.get(row).cloned()
            && !self.toggled.remove(&key)
        {
            self.toggled.insert(key);
        }
    }
}

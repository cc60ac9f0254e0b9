//! Inference engines in the table: a line each, with what they serve and for whom.

use super::table::row::names;
use gpuwho_model::screen::{Screen, Style, clean, left, right, width};
use gpuwho_model::text::printable;
use gpuwho_owners::attribute::view::OwnerView;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Narrower names are of no use.
const MIN_NAME: usize = 12;

/// An inference engine whose page the agent reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineView {
    /// Whose it is.
    #[serde(flatten)]
    pub owner: OwnerView,
    /// `vllm`; absent until its page was read.
    pub engine: Option<String>,
    /// Its version, where it says it.
    pub version: Option<String>,
    /// The host, for an endpoint of the configuration.
    pub address: Option<String>,
    /// The port of its page.
    pub port: u16,
    /// Models that its page names.
    pub models: Vec<String>,
    /// Tokens generated each second between the last two pages.
    pub tokens_per_second: Option<f64>,
    /// Requests whose tokens are being computed.
    pub running: Option<i64>,
    /// Requests that wait.
    pub waiting: Option<i64>,
}

impl EngineView {
    /// Cells of its line, its names shortened by nobody yet.
    fn cells(&self) -> [String; 6] {
        let name = self.engine.as_deref().unwrap_or("?");
        let place = self.address.as_ref().map(|host| printable(host).into_owned());
        let owner = self.owner.owner.as_ref().map(|_| names(&self.owner)[0].clone()).or(place);
        let number = |number: Option<i64>| number.map_or("-".into(), |number| number.to_string());
        [
            clean(&owner.unwrap_or("-".into())).into_owned(),
            format!("{name}:{}", self.port),
            if self.models.is_empty() { "-".into() } else { clean(&self.models.join(" ")).into() },
            self.tokens_per_second.map_or("-".into(), |rate| format!("{rate:.0}")),
            number(self.running),
            number(self.waiting),
        ]
    }
}

/// The lines of all engines under a heading; owners and models are elided to the screen's width.
pub(crate) fn table(engines: &[EngineView], screen: Screen) -> String {
    const HEADER: [&str; 6] = ["OWNER", "ENGINE", "MODEL", "TOKENS/S", "RUNNING", "WAITING"];
    if engines.is_empty() {
        return String::new();
    }
    let rows: Vec<[String; 6]> = engines.iter().map(EngineView::cells).collect();
    let mut wide = HEADER.map(width);
    for (wide, at) in wide.iter_mut().zip(0..) {
        let cells = rows.iter().filter_map(|row: &[String; 6]| row.get::<usize>(at));
        *wide = cells.map(|cell| width(cell)).chain([*wide]).max().unwrap_or(0);
    }
    // Names give way, the model first.
    let gaps = wide.len() - 1;
    let over =
        |wide: &[usize; 6]| (wide.iter().sum::<usize>() + gaps).saturating_sub(screen.width());
    for at in [2, 0, 1] {
        let over = over(&wide);
        if let Some(wide) = wide.get_mut(at) {
            *wide = wide.saturating_sub(over).max(MIN_NAME.min(*wide));
        }
    }
    let line = |cells: [&str; 6]| {
        let cells = cells.iter().zip(wide).enumerate();
        let cells = cells.map(|(at, (cell, wide))| match at {
            0..=2 => left(cell, wide),
            _ => right(cell, wide),
        });
        cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    };
    let mut out = format!("\n{}\n", screen.paint(Style::Heading, &line(HEADER)));
    for (row, engine) in rows.iter().zip(engines) {
        let mut cells = row.each_ref().map(String::as_str);
        let [_, short] = names(&engine.owner);
        if width(cells[0]) > wide[0] && engine.owner.owner.is_some() {
            // Never cut: without its container, else on lines of its own.
            let has_room = width(&short) <= wide[0];
            out.push_str(&if has_room { String::new() } else { screen.fold(0, &short) });
            cells[0] = if has_room { &short } else { "" };
        }
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", line(cells));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(owner: &str, model: &str) -> EngineView {
        EngineView {
            owner: OwnerView { owner: Some(owner.into()), ..OwnerView::default() },
            engine: Some("vllm".into()),
            port: 8000,
            models: vec![model.into()],
            tokens_per_second: Some(1234.6),
            running: Some(15),
            waiting: Some(32),
            ..EngineView::default()
        }
    }

    #[test]
    fn an_engine_is_a_line_with_its_model_rate_and_queue() {
        let starting = EngineView { address: Some("gpu1".into()), port: 9, ..<_>::default() };
        let table =
            table(&[engine("ml/chat-0 [server]", "llama"), starting], Screen::new(80, false));
        let wanted = "\n\
            OWNER              ENGINE    MODEL TOKENS/S RUNNING WAITING\n\
            ml/chat-0 [server] vllm:8000 llama     1235      15      32\n\
            gpu1               ?:9       -            -       -       -\n";
        assert_eq!(table, wanted);
    }

    #[test]
    fn no_line_is_wider_than_the_screen_and_numbers_stay() {
        let long = engine(&"research/".repeat(20), &"meta-llama/".repeat(20));
        for wide in [60, 80, 120] {
            let table = table(std::slice::from_ref(&long), Screen::new(wide, false));
            for line in table.lines() {
                assert!(width(line) <= wide, "{wide}: {line}");
            }
            assert!(table.contains(" 1235      15      32\n"), "{table}");
        }
    }
}

//! Text in columns: cells measured as a terminal shows them, elided in the middle, and coloured
//! where a person reads them. Writes nothing.

use crate::text::printable;
use std::borrow::Cow;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Narrower than this no table is of use.
const MIN_WIDTH: usize = 40;
/// Wider lines cannot be followed with the eye.
const MAX_WIDTH: usize = 250;

/// Where a table is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    width: usize,
    is_coloured: bool,
}

/// What a text is, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Nothing special.
    Plain,
    /// A heading.
    Heading,
    /// Works.
    Good,
    /// Needs a look.
    Warning,
    /// Broken.
    Bad,
}

impl Style {
    /// The terminal's code (ECMA-48, SGR).
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Heading => Some("1"),
            Self::Good => Some("32"),
            Self::Warning => Some("33"),
            Self::Bad => Some("31"),
        }
    }
}

impl Screen {
    /// A screen of a width, which is brought into bounds.
    pub fn new(width: usize, is_coloured: bool) -> Self {
        Self { width: width.clamp(MIN_WIDTH, MAX_WIDTH), is_coloured }
    }

    /// Columns.
    pub fn width(self) -> usize {
        self.width
    }

    /// The text in the colour of its style. Apply it to what is padded already.
    pub fn paint(self, style: Style, text: &str) -> String {
        match style.code().filter(|_| self.is_coloured && !text.trim().is_empty()) {
            Some(code) => format!("\x1b[{code}m{text}\x1b[0m"),
            None => text.to_owned(),
        }
    }

    /// The text in lines of the screen's width, broken between words, each behind so many blanks.
    pub fn wrap(self, indent: usize, text: &str) -> String {
        let text = clean(text);
        let room = self.width.saturating_sub(indent).max(1);
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            let word = elide(word, room);
            match lines.last_mut() {
                Some(line) if line.width() + 1 + word.width() <= room => {
                    line.push(' ');
                    line.push_str(&word);
                }
                _ => lines.push(word.into_owned()),
            }
        }
        let before = " ".repeat(indent);
        lines.iter().flat_map(|line| [before.as_str(), line, "\n"]).collect()
    }

    /// The same in the colour of its style.
    pub fn wrap_painted(self, style: Style, indent: usize, text: &str) -> String {
        let lines = self.wrap(indent, text);
        lines.lines().flat_map(|line| [self.paint(style, line), "\n".to_owned()]).collect()
    }

    /// A name in lines of the screen's width, broken anywhere and never cut.
    pub fn fold(self, indent: usize, name: &str) -> String {
        let room = self.width.saturating_sub(indent).max(2);
        let (mut rest, mut out) = (name, String::new());
        while !rest.is_empty() {
            let line = taken(rest.chars(), room);
            rest = rest.get(line.len()..).unwrap_or_default();
            out.extend([" ".repeat(indent), line, "\n".to_owned()]);
        }
        out
    }
}

/// What a terminal may be given of a text that others have chosen.
pub fn clean(text: &str) -> Cow<'_, str> {
    printable(text)
}

/// How many cells a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// A text in so many cells at most; what is left out is in the middle.
pub fn elide(text: &str, most: usize) -> Cow<'_, str> {
    if text.width() <= most {
        return Cow::Borrowed(text);
    }
    let Some(room) = most.checked_sub(1) else { return Cow::Borrowed("") };
    let head = taken(text.chars(), room.div_ceil(2));
    let tail = taken(text.chars().rev(), room / 2);
    let tail: String = tail.chars().rev().collect();
    Cow::Owned(format!("{head}…{tail}"))
}

/// The first characters that fit.
fn taken(chars: impl Iterator<Item = char>, room: usize) -> String {
    let mut left = room;
    let fits = |c: &char| {
        let rest = left.checked_sub(c.width().unwrap_or(0));
        rest.inspect(|rest| left = *rest).is_some()
    };
    chars.take_while(fits).collect()
}

/// A cell of exactly this width, its text to the left.
pub fn left(text: &str, wide: usize) -> String {
    let text = elide(text, wide);
    let rest = wide.saturating_sub(text.width());
    format!("{text}{:rest$}", "")
}

/// A cell of exactly this width, its text to the right.
pub fn right(text: &str, wide: usize) -> String {
    let text = elide(text, wide);
    let rest = wide.saturating_sub(text.width());
    format!("{:rest$}{text}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_keeps_its_beginning_and_its_end() {
        assert_eq!(elide("serving/embedder-x2x7k [server]", 16), "serving/…server]");
        assert_eq!(elide("short", 5), "short");
        assert_eq!((elide("short", 1), elide("short", 0)), ("…".into(), "".into()));
    }

    #[test]
    fn letters_that_take_two_cells_are_measured_so() {
        assert_eq!(elide("模型训练任务", 7), "模…务");
        assert_eq!(left("模型", 6), "模型  ");
        assert_eq!(right("模型训练", 5), " 模…练".trim_start());
        for most in 0..14 {
            assert!(width(&elide("模型a训练🚀任务", most)) <= most, "{most}");
        }
    }

    #[test]
    fn sentences_break_between_words_and_no_word_is_wider_than_the_screen() {
        let screen = Screen::new(40, true);
        let text = screen.wrap(2, &format!("{} {}", "nine char".repeat(6), "x".repeat(90)));
        assert!(text.lines().count() > 2, "{text}");
        assert!(text.lines().all(|line| width(line) <= 40 && line.starts_with("  ")), "{text}");
    }

    #[test]
    fn a_name_is_broken_and_not_cut() {
        let name = "模型训练/任务".repeat(20) + &"x".repeat(50);
        let lines = Screen::new(40, false).fold(5, &name);
        assert!(lines.lines().all(|line| width(line) <= 40), "{lines}");
        assert_eq!(lines.split_whitespace().collect::<String>(), name);
    }

    #[test]
    fn colours_are_for_terminals_alone() {
        assert_eq!(Screen::new(80, true).paint(Style::Bad, "lost"), "\x1b[31mlost\x1b[0m");
        assert_eq!(Screen::new(80, false).paint(Style::Bad, "lost"), "lost");
    }
}

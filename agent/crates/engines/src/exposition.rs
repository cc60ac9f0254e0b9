//! Lines of a metrics page: the text format 0.0.4 of Prometheus and OpenMetrics 1.0.
//!
//! Reads one line at a time and keeps nothing. Both formats are taken liberally, as a scraper does:
//! what one of them allows is allowed. A line that is neither is its own error only.

mod cursor;

use cursor::Cursor;
use std::borrow::Cow;

/// The longest line. vLLM's `cache_config_info` has some 1.5 kB.
pub const MAX_LINE: usize = 64 << 10;
/// Labels of a series. That line has 45.
pub const MAX_LABELS: usize = 128;
/// The longest name of a family.
pub const MAX_NAME: usize = 256;

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Longer than [`MAX_LINE`].
    #[error("longer than {MAX_LINE} bytes")]
    TooLong,
    /// Bytes that are no text.
    #[error("not UTF-8")]
    NotText,
    /// It does not begin with the name of a series.
    #[error("no name of a series")]
    Name,
    /// Braces, names, equal signs, quotes or commas of its labels.
    #[error("labels are not well formed")]
    Labels,
    /// More than [`MAX_LABELS`].
    #[error("more than {MAX_LABELS} labels")]
    TooManyLabels,
    /// A label twice.
    #[error("a label twice")]
    LabelTwice,
    /// No number.
    #[error("the value is no number")]
    Value,
    /// Something behind the value that is neither a time nor an exemplar.
    #[error("neither a time nor an exemplar behind the value")]
    Rest,
    /// A comment with an unknown type.
    #[error("no type of the format")]
    Type,
    /// A series that was on the page before.
    #[error("a series twice")]
    SeriesTwice,
    /// Behind the line that ends an OpenMetrics page.
    #[error("behind the end of the page")]
    BehindEnd,
    /// The last line of a page, without its end: it may be cut.
    #[error("no end of the line")]
    Cut,
    /// A histogram without a sum, without its last bucket, or of other buckets than the one that it
    /// is added to.
    #[error("buckets that make no histogram")]
    Buckets,
    /// One of more lines than are read.
    #[error("beyond the lines of a page that are read")]
    TooMany,
}

/// The type in a family's comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyType {
    /// Grows.
    Counter,
    /// A level.
    Gauge,
    /// Buckets.
    Histogram,
    /// Quantiles.
    Summary,
    /// `untyped`, `unknown`, or none.
    Unknown,
    /// Any other of OpenMetrics: `info`, `stateset`, `gaugehistogram`.
    Other,
}

/// A line.
#[derive(Debug, PartialEq)]
pub enum Line<'a> {
    /// Nothing, help, unit, or a comment.
    Nothing,
    /// The type of a family.
    Type(Cow<'a, str>, FamilyType),
    /// The end of an OpenMetrics page.
    End,
    /// A series and its value.
    Sample(SampleLine<'a>),
}

/// A label's name and value.
pub type Label<'a> = (Cow<'a, str>, Cow<'a, str>);

/// A series and its value.
#[derive(Debug, PartialEq)]
pub struct SampleLine<'a> {
    /// Its name, with `_bucket` and the like.
    pub name: Cow<'a, str>,
    /// In the page's order.
    pub labels: Vec<Label<'a>>,
    /// Where the value begins: everything before it is the series.
    pub value_at: usize,
    /// The value.
    pub value: f64,
    /// Its timestamp on the page: milliseconds in the text format, seconds in
    /// OpenMetrics.
    pub time: Option<f64>,
    /// Whether an exemplar follows.
    pub has_exemplar: bool,
}

impl SampleLine<'_> {
    /// A label's value.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

/// Reads a line without its end.
pub fn line(bytes: &[u8]) -> Result<Line<'_>, LineError> {
    if bytes.len() > MAX_LINE {
        return Err(LineError::TooLong);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| LineError::NotText)?;
    let text = text.strip_suffix('\r').unwrap_or(text);
    let mut at = Cursor::new(text, 0);
    at.blanks();
    match at.peek() {
        None => Ok(Line::Nothing),
        Some(b'#') => comment(at.rest()),
        Some(_) => sample(at).map(Line::Sample),
    }
}

fn comment(text: &str) -> Result<Line<'_>, LineError> {
    let mut at = Cursor::new(text, 1);
    at.blanks();
    let keyword = at.word();
    at.blanks();
    match keyword {
        "EOF" if at.peek().is_none() => Ok(Line::End),
        "TYPE" => {
            let name = if at.peek() == Some(b'"') {
                at.quoted().ok_or(LineError::Name)?
            } else {
                Cow::Borrowed(at.word())
            };
            if name.is_empty() || name.len() > MAX_NAME {
                return Err(LineError::Name);
            }
            at.blanks();
            Ok(Line::Type(name, family_type(at.rest().trim_end()).ok_or(LineError::Type)?))
        }
        _ => Ok(Line::Nothing),
    }
}

fn family_type(word: &str) -> Option<FamilyType> {
    Some(match word {
        "counter" => FamilyType::Counter,
        "gauge" => FamilyType::Gauge,
        "histogram" => FamilyType::Histogram,
        "summary" => FamilyType::Summary,
        "untyped" | "unknown" => FamilyType::Unknown,
        "info" | "stateset" | "gaugehistogram" => FamilyType::Other,
        _ => return None,
    })
}

fn sample(mut at: Cursor<'_>) -> Result<SampleLine<'_>, LineError> {
    let mut name = Cow::Borrowed(at.name(true));
    at.blanks();
    let mut labels = Vec::new();
    if at.take(b'{') {
        let quoted = label_set(&mut at, &mut |label| add(&mut labels, label))?;
        match quoted {
            Some(quoted) if name.is_empty() => name = quoted,
            Some(_) => return Err(LineError::Labels),
            None => {}
        }
        at.blanks();
    }
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(LineError::Name);
    }
    let value_at = at.place();
    let value = number(at.word().as_bytes()).ok_or(LineError::Value)?;
    let (time, has_exemplar) = rest(&mut at)?;
    Ok(SampleLine { name, labels, value_at, value, time, has_exemplar })
}

fn add<'a>(labels: &mut Vec<Label<'a>>, label: Label<'a>) -> Result<(), LineError> {
    if labels.len() >= MAX_LABELS {
        return Err(LineError::TooManyLabels);
    }
    if labels.iter().any(|(known, _)| *known == label.0) {
        return Err(LineError::LabelTwice);
    }
    labels.push(label);
    Ok(())
}

/// Labels up to the closing brace; a quoted name without a value is the series' own.
fn label_set<'a>(
    at: &mut Cursor<'a>,
    take: &mut dyn FnMut(Label<'a>) -> Result<(), LineError>,
) -> Result<Option<Cow<'a, str>>, LineError> {
    let mut series = None;
    loop {
        at.blanks();
        if at.take(b'}') {
            return Ok(series);
        }
        let is_quoted = at.peek() == Some(b'"');
        let name = if is_quoted {
            at.quoted().ok_or(LineError::Labels)?
        } else {
            Cow::Borrowed(at.name(false))
        };
        at.blanks();
        if at.take(b'=') {
            at.blanks();
            let value = at.quoted().ok_or(LineError::Labels)?;
            if name.is_empty() {
                return Err(LineError::Labels);
            }
            take((name, value))?;
        } else if is_quoted && series.is_none() {
            series = Some(name);
        } else {
            return Err(LineError::Labels);
        }
        at.blanks();
        if !at.take(b',') && at.peek() != Some(b'}') {
            return Err(LineError::Labels);
        }
    }
}

/// A time and an exemplar, each where there is one.
fn rest(at: &mut Cursor<'_>) -> Result<(Option<f64>, bool), LineError> {
    let mut time = None;
    at.blanks();
    if at.peek().is_some_and(|byte| byte != b'#') {
        time = Some(finite(at.word())?);
        at.blanks();
    }
    if at.peek().is_none() {
        return Ok((time, false));
    }
    if !at.take(b'#') {
        return Err(LineError::Rest);
    }
    at.blanks();
    if !at.take(b'{') {
        return Err(LineError::Rest);
    }
    if label_set(at, &mut |_| Ok(()))?.is_some() {
        return Err(LineError::Rest);
    }
    at.blanks();
    number(at.word().as_bytes()).ok_or(LineError::Rest)?;
    at.blanks();
    if at.peek().is_some() {
        finite(at.word())?;
        at.blanks();
    }
    if at.peek().is_some() { Err(LineError::Rest) } else { Ok((time, true)) }
}

fn finite(word: &str) -> Result<f64, LineError> {
    number(word.as_bytes()).filter(|time| time.is_finite()).ok_or(LineError::Rest)
}

/// A number: decimal, or `NaN` and `Inf` in any case, with a sign or without. Few digits, which
/// most values have, are a division of two exact numbers, and so rounded right.
pub fn number(token: &[u8]) -> Option<f64> {
    const EXACT: [f64; 16] =
        [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
    let (mut digits, mut behind_point, mut has_point) = (0_u64, 0_usize, false);
    if (1..=16).contains(&token.len()) && token.first() != Some(&b'.') {
        let is_plain = token.iter().all(|byte| match byte {
            b'0'..=b'9' => {
                digits = digits * 10 + u64::from(byte - b'0');
                behind_point += usize::from(has_point);
                true
            }
            b'.' if !has_point => {
                has_point = true;
                true
            }
            _ => false,
        });
        if let Some(by) = EXACT.get(behind_point).filter(|_| is_plain && digits < 1 << 53) {
            return Some(digits as f64 / by);
        }
    }
    std::str::from_utf8(token).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;

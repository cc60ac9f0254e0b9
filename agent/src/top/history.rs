//! What a value was, as a line of braille: peaks survive, because several readings in one place show
//! their greatest.

use std::collections::VecDeque;

/// Readings kept of a line: 20 minutes at two seconds.
const KEPT: usize = 600;

/// A value's readings, from 0 to 1; none where it was not known.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    values: VecDeque<Option<f64>>,
    /// All readings so far: places of the line begin at multiples, so that it does not flicker.
    count: usize,
}

impl History {
    /// Adds a reading.
    pub(super) fn push(&mut self, value: Option<f64>) {
        self.values.push_back(value);
        if self.values.len() > KEPT {
            self.values.pop_front();
        }
        self.count += 1;
    }

    /// The line: two places a character, the last reading on the right.
    pub(super) fn line(&self, characters: usize, is_ascii: bool) -> String {
        let places = characters * if is_ascii { 1 } else { 2 };
        if places == 0 {
            return String::new();
        }
        let in_one = self.values.len().div_ceil(places).max(1);
        let first = self.count - self.values.len();
        let mut pooled: Vec<Option<f64>> = Vec::new();
        let mut current = None;
        for (at, value) in (first..).zip(&self.values) {
            let place = at / in_one;
            if current != Some(place) {
                current = Some(place);
                pooled.push(None);
            }
            if let Some(last) = pooled.last_mut() {
                *last = match (*last, *value) {
                    (Some(one), Some(other)) => Some(one.max(other)),
                    (one, other) => one.or(other),
                };
            }
        }
        let missing = places.saturating_sub(pooled.len());
        let over = pooled.len().saturating_sub(places);
        let padded = std::iter::repeat_n(None, missing).chain(pooled.into_iter().skip(over));
        let padded: Vec<Option<f64>> = padded.collect();
        if is_ascii {
            return padded.iter().map(|value| ascii(*value)).collect();
        }
        padded.chunks(2).map(braille).collect()
    }
}

/// Dots of the left and of the right column, from the bottom up (Unicode 28xx).
const LEFT: [u32; 4] = [0x40, 0x04, 0x02, 0x01];
const RIGHT: [u32; 4] = [0x80, 0x20, 0x10, 0x08];

fn braille(two: &[Option<f64>]) -> char {
    let dots = |value: Option<f64>, column: [u32; 4]| {
        column.iter().take(height(value, 4)).fold(0, |all, dot| all | dot)
    };
    let left = dots(two.first().copied().flatten(), LEFT);
    let right = dots(two.get(1).copied().flatten(), RIGHT);
    // An empty pattern is a letter that terminals do not agree on.
    char::from_u32(0x2800 + left + right).filter(|dots| *dots != '\u{2800}').unwrap_or(' ')
}

fn ascii(value: Option<f64>) -> char {
    const LEVELS: [char; 6] = [' ', '.', ':', '-', '=', '#'];
    LEVELS.get(height(value, 5)).copied().unwrap_or('#')
}

/// How high of so many steps: a known 0 has one, since something is there.
fn height(value: Option<f64>, steps: u32) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a few steps, and not below 0"
    )]
    let high = |part: f64| (part.clamp(0.0, 1.0) * f64::from(steps)).ceil().max(1.0) as usize;
    value.map_or(0, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(values: impl IntoIterator<Item = f64>) -> History {
        let mut history = History::default();
        values.into_iter().for_each(|value| history.push(Some(value)));
        history
    }

    #[test]
    fn the_last_reading_is_on_the_right_and_a_peak_survives() {
        assert_eq!(history([0.0, 0.5, 1.0]).line(3, true), ".-#");
        assert_eq!(history([1.0]).line(3, true), "  #");
        let mut values = vec![0.0; 100];
        values[37] = 1.0;
        let line = history(values).line(10, true);
        assert_eq!(line.matches('#').count(), 1, "{line}");
        assert_eq!(history([0.0, 1.0]).line(1, false), "⣸");
    }

    #[test]
    fn nothing_is_known_of_a_time_without_a_reading() {
        let mut history = history([1.0]);
        history.push(None);
        assert_eq!(history.line(2, true), "# ");
        assert_eq!((history.line(0, true), history.line(0, false)), Default::default());
    }

    #[test]
    fn an_hour_fits_and_old_readings_go() {
        let history = history((0..5000).map(|at| if at == 0 { 1.0 } else { 0.0 }));
        assert_eq!(history.values.len(), KEPT);
        for characters in [1, 7, 400] {
            let line = history.line(characters, false);
            assert_eq!(line.chars().count(), characters);
        }
        assert!(!history.line(20, true).contains('#'));
    }
}

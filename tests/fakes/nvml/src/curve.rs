//! Values as functions of time, with their integrals, so that a counter is exactly the sum of the
//! rate it counts.

use serde::Deserialize;
use std::f64::consts::TAU;

/// Where in the scenario a value is: lets one line describe eight devices that differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Index of the device.
    pub device: u32,
    /// Position of the process on its device; 0 for the device's own values.
    pub slot: u32,
}

/// A value over time in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number, { first, device, slot, second }, { ramp = … }, { sine = … } or { steps = … }"
)]
pub enum Curve {
    /// Always the same.
    Constant(f64),
    /// Another one for each device and process, which may grow evenly.
    Spread(Spread),
    /// Changing.
    Shaped(Shape),
}

/// `first + device × index + slot × slot + second × time`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Value of the first process on the first device.
    pub first: f64,
    /// Added for each device before this one.
    #[serde(default)]
    pub device: f64,
    /// Added for each process before this one.
    #[serde(default)]
    pub slot: f64,
    /// Added for each second.
    #[serde(default)]
    pub second: f64,
}

/// How a value changes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Shape {
    /// From one value to another, which it then keeps.
    Ramp {
        /// At time 0.
        from: f64,
        /// At and after `seconds`.
        to: f64,
        /// How long it takes.
        seconds: f64,
    },
    /// A sine wave around a mean.
    Sine {
        /// Its middle, also its value at time 0.
        mean: f64,
        /// Its greatest distance from the mean.
        amplitude: f64,
        /// Seconds a wave.
        period: f64,
    },
    /// `[second, value]` pairs in order: each value holds until the next one's second; the first
    /// also holds before its own.
    Steps(Vec<[f64; 2]>),
}

impl Curve {
    /// The value at a time.
    pub fn at(&self, seconds: f64, place: Place) -> f64 {
        match self {
            Self::Constant(value) => *value,
            Self::Spread(spread) => spread.at(place) + spread.second * seconds,
            Self::Shaped(shape) => shape.at(seconds),
        }
    }

    /// The area under the curve from time 0.
    pub fn integral(&self, seconds: f64, place: Place) -> f64 {
        match self {
            Self::Constant(value) => value * seconds,
            Self::Spread(spread) => (spread.at(place) + spread.second * seconds / 2.0) * seconds,
            Self::Shaped(shape) => shape.integral(seconds),
        }
    }
}

impl Spread {
    fn at(self, place: Place) -> f64 {
        self.first + self.device * f64::from(place.device) + self.slot * f64::from(place.slot)
    }
}

impl Shape {
    fn at(&self, seconds: f64) -> f64 {
        match self {
            Self::Ramp { from, to, seconds: length } => {
                from + (to - from) * (seconds / length).clamp(0.0, 1.0)
            }
            Self::Sine { mean, amplitude, period } => {
                mean + amplitude * (TAU * seconds / period).sin()
            }
            Self::Steps(steps) => {
                let past = steps.iter().take_while(|[from, _]| *from <= seconds).last();
                past.or(steps.first()).map_or(0.0, |[_, value]| *value)
            }
        }
    }

    fn integral(&self, seconds: f64) -> f64 {
        match self {
            Self::Ramp { from, to, seconds: length } => {
                let rising = seconds.min(*length);
                let reached = self.at(rising);
                f64::midpoint(*from, reached) * rising + to * (seconds - length).max(0.0)
            }
            Self::Sine { mean, amplitude, period } => {
                let turn = TAU / period;
                mean * seconds + amplitude / turn * (1.0 - (turn * seconds).cos())
            }
            Self::Steps(steps) => {
                let ends = steps.iter().skip(1).map(|[from, _]| *from).chain([f64::INFINITY]);
                let mut begin = 0.0;
                let mut area = 0.0;
                for ([_, value], end) in steps.iter().zip(ends) {
                    let end = end.clamp(begin, seconds.max(begin));
                    area += value * (end - begin);
                    begin = end;
                }
                area
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Curve, Place, Shape, Spread};

    const HERE: Place = Place { device: 2, slot: 3 };

    /// Sums small pieces; the curves' own integrals must agree with it.
    fn summed(curve: &Curve, seconds: f64) -> f64 {
        let piece = 0.001;
        let mut at = piece / 2.0;
        let mut area = 0.0;
        while at < seconds {
            area += curve.at(at, HERE) * piece;
            at += piece;
        }
        area
    }

    #[test]
    fn a_counter_is_the_sum_of_its_rate() {
        let curves = [
            Curve::Constant(7.0),
            Curve::Spread(Spread { first: 1.0, device: 10.0, slot: 100.0, second: 0.5 }),
            Curve::Shaped(Shape::Ramp { from: 2.0, to: 8.0, seconds: 3.0 }),
            Curve::Shaped(Shape::Sine { mean: 5.0, amplitude: 4.0, period: 3.3 }),
            Curve::Shaped(Shape::Steps(vec![[0.0, 1.0], [2.0, 5.0], [4.0, 0.5]])),
        ];
        for curve in curves {
            for seconds in [0.5, 2.5, 6.0] {
                let (exact, sum) = (curve.integral(seconds, HERE), summed(&curve, seconds));
                assert!((exact - sum).abs() < 0.02, "{curve:?} at {seconds}: {exact} or {sum}");
            }
        }
    }

    #[test]
    fn each_device_and_process_has_its_own_value() {
        let spread = Curve::Spread(Spread { first: 1.0, device: 10.0, slot: 100.0, second: 0.5 });
        assert!((spread.at(0.0, HERE) - 321.0).abs() < 1e-9);
        assert!((spread.at(99.0, HERE) - 370.5).abs() < 1e-9);
    }

    #[test]
    fn a_step_holds_until_the_next() {
        let steps = Curve::Shaped(Shape::Steps(vec![[0.0, 1.0], [2.0, 5.0]]));
        let seen: Vec<f64> = [0.0, 1.99, 2.0, 50.0].iter().map(|t| steps.at(*t, HERE)).collect();
        assert_eq!(seen, [1.0, 1.0, 5.0, 5.0]);
    }
}

//! Readings of files that rarely change or cost the firmware work: read every few readings, and exported
//! at every one.

use crate::wire::WireValue;

/// Values as last read, at every `EVERY`th reading.
#[derive(Debug, Default)]
pub(super) struct Cached<const EVERY: u32> {
    readings: u32,
    values: Vec<WireValue>,
}

impl<const EVERY: u32> Cached<EVERY> {
    /// Reads the values if they are due, and adds the last ones.
    pub(super) fn read(
        &mut self,
        out: &mut Vec<WireValue>,
        body: impl FnOnce(&mut Vec<WireValue>),
    ) {
        if self.readings.is_multiple_of(EVERY) {
            self.values.clear();
            body(&mut self.values);
        }
        self.readings = self.readings.wrapping_add(1);
        out.extend_from_slice(&self.values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::push;
    use gpuwho_model::catalog::device::POWER_STATE;

    #[test]
    fn a_value_is_exported_at_every_reading_and_read_at_some() {
        let (mut cached, mut out, mut asked) = (Cached::<3>::default(), Vec::new(), 0);
        for _ in 0..7 {
            cached.read(&mut out, |out| {
                asked += 1;
                push(out, &POWER_STATE, (), Some(1));
            });
        }
        assert_eq!((asked, out.len()), (3, 7));
    }
}

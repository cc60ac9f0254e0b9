//! The driver's table of readings (`gpu_metrics`) as MI300X (1.7) and MI210 (1.3) have it: all ones but
//! for what is set.

/// Joules of a step of the energy counter: 2^-16.
const ENERGY_STEPS: f64 = 65536.0;
/// Accounting cycles of the firmware in a second.
pub const CYCLES: f64 = 1000.0;

/// A table.
#[derive(Clone, Debug)]
pub struct Table(Vec<u8>);

impl Table {
    /// Revision 1.7.
    pub fn mi300() -> Self {
        Self::of([1, 7], 2208)
    }

    /// Revision 1.3.
    pub fn mi210() -> Self {
        Self::of([1, 3], 120)
    }

    fn of(revision: [u8; 2], length: u16) -> Self {
        let mut bytes = vec![0xff; usize::from(length)];
        bytes[..2].copy_from_slice(&length.to_le_bytes());
        bytes[2..4].copy_from_slice(&revision);
        Self(bytes)
    }

    /// The energy counter, at the same place in both.
    pub fn energy(&mut self, joules: f64) {
        self.set(24, 8, whole(joules * ENERGY_STEPS));
    }

    /// Throttle bits of 1.3.
    pub fn throttle_bits(&mut self, bits: u64) {
        self.set(112, 8, bits);
    }

    /// Seconds of 1.7's accounting, and of them those with each reason: prochot, power, socket,
    /// regulator, memory.
    pub fn held(&mut self, seconds: f64, held: [f64; 5]) {
        self.set(40, 4, whole(seconds * CYCLES));
        for (n, held) in held.into_iter().enumerate() {
            self.set(44 + 4 * n, 4, whole(held * CYCLES));
        }
    }

    /// Counters of the PCIe link of 1.7: recoveries, replays, rollovers; NAKs sent and received.
    pub fn pcie(&mut self, counts: [u64; 3], naks: [u64; 2]) {
        for (n, count) in counts.into_iter().enumerate() {
            self.set(104 + 8 * n, 8, count);
        }
        for (n, count) in naks.into_iter().enumerate() {
            self.set(128 + 4 * n, 4, count);
        }
    }

    /// Lanes and Gbit/s of 1.7's XGMI links.
    pub fn xgmi(&mut self, lanes: u64, rate: u64) {
        self.set(72, 2, lanes);
        self.set(74, 2, rate);
    }

    /// One of them: KiB read and written, and its status.
    pub fn link(&mut self, link: usize, kib: [u64; 2], status: u64) {
        self.set(136 + 8 * link, 8, kib[0]);
        self.set(200 + 8 * link, 8, kib[1]);
        self.set(264 + 2 * link, 2, status);
    }

    /// MHz of 1.7's first clocks of SoC and video.
    pub fn clocks(&mut self, soc: u64, video: u64) {
        self.set(312, 2, soc);
        self.set(320, 2, video);
    }

    /// Percent of the first engine of a partition of 1.7.
    pub fn partition(&mut self, part: usize, percent: u64) {
        self.set(344 + 232 * part, 4, percent);
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn set(&mut self, at: usize, width: usize, value: u64) {
        self.0[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts of a scenario")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

//! Copies of known size to the device, against what the driver says came over PCIe.

use super::{Bench, Checked};
use crate::report::Row;
use crate::watch::{mean, values};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::gpm::PCIE_THROUGHPUT;

const CHECK: &str = "copies over PCIe";
/// Packets have headers, and requests for data count too.
const MORE: std::ops::Range<f64> = 0.9..1.35;

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    let (load, _, points) = bench.under(&["copy", "--memory", "512", "--duty", "50"])?;
    let done = load.stop()?;
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let copied = done.bytes as f64 / done.wall;
    let on = [(attr::IO_DIRECTION.name, "receive")];
    let Some(read) = mean(&values(&points, PCIE_THROUGHPUT.def().name, &on)) else {
        return Ok(vec![Row::skip(CHECK, "the driver counts no bytes of PCIe here")]);
    };
    let seen = format!("{:.2} GB/s copied, {:.2} GB/s read", copied / 1e9, read / 1e9);
    Ok(vec![Row::judged(CHECK, MORE.contains(&(read / copied)), seen)])
}

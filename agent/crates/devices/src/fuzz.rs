//! Entry points of the fuzz targets (`tests/fuzz`).

use super::amd;

/// Parses any bytes as AMD's table of readings (`gpu_metrics`).
pub fn gpu_metrics(bytes: &[u8]) {
    amd::gpu_metrics::read_any(bytes);
}

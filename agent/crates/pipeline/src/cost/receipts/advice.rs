//! What would have been enough, with the figures: fewer devices, a MIG profile, a smaller board. Only where
//! the receipt covers enough time and little was used; a mean says nothing of a job's short peaks, so the
//! peaks of an interval count.

use super::view::{DeviceReceipt, Receipt};

/// Shorter receipts say nothing.
const MIN_SECONDS: f64 = 600.0;
/// A device with less use did nothing.
const UNUSED: f64 = 0.01;
/// With more use there is nothing to say.
const LITTLE: f64 = 0.4;
/// Memory that must be left.
const MARGIN: f64 = 1.1;

/// MIG profiles: compute and memory as parts of the device (NVIDIA MIG user guide, supported profiles).
static PROFILES: &[(&str, f64, f64)] =
    &[("1g", 1.0 / 7.0, 1.0 / 8.0), ("2g", 2.0 / 7.0, 1.0 / 4.0), ("3g", 3.0 / 7.0, 1.0 / 2.0)];
/// Boards with these profiles.
static MIG_MODELS: &[&str] = &["A100", "H100", "H200", "H800", "GH200", "B200", "GB200"];

pub(super) fn of(receipt: &Receipt) -> Vec<String> {
    if receipt.seconds < MIN_SECONDS {
        return Vec::new();
    }
    let mut all = Vec::new();
    let known = |device: &&DeviceReceipt| device.gpu_hours.unknown <= 0.0;
    let devices: Vec<&DeviceReceipt> = receipt.devices.iter().filter(known).collect();
    let (unused, used): (Vec<&DeviceReceipt>, Vec<_>) = devices
        .iter()
        .partition(|device| device.utilization_mean.is_some_and(|mean| mean < UNUSED));
    if !unused.is_empty() && receipt.devices.len() > 1 && !used.is_empty() {
        let (unused, count) = (unused.len(), receipt.devices.len());
        let enough = count - unused;
        all.push(format!(
            "fewer devices: {unused} of {count} were busy for less than 1 % of the time; {enough} would \
             have been enough"
        ));
    }
    let largest = devices.iter().max_by_key(|device| device.memory_peak_bytes);
    let peaks: Option<Vec<f64>> = devices.iter().map(|device| device.utilization_peak).collect();
    let busiest = peaks.map(|peaks| peaks.into_iter().fold(0.0, f64::max));
    if let Some((device, (mean, busiest))) = largest.zip(receipt.utilization_mean.zip(busiest))
        && devices.len() == receipt.devices.len()
        && busiest < LITTLE
    {
        all.extend(smaller(device, mean, busiest));
    }
    all
}

fn smaller(device: &DeviceReceipt, mean: f64, peak: f64) -> Option<String> {
    let limit = device.memory_limit_bytes.filter(|limit| *limit > 0)? as f64;
    let bytes = device.memory_peak_bytes? as f64;
    let fits = |(_, compute, memory): &&(&str, f64, f64)| {
        peak <= *compute && bytes * MARGIN <= limit * memory
    };
    let (profile, _, memory) = PROFILES.iter().find(fits)?;
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let figures = format!(
        "busy {:.0} % average and {:.0} % peak, {:.1} of {:.1} GiB peak",
        mean * 100.0,
        peak * 100.0,
        gib(bytes),
        gib(limit)
    );
    let model = device.model.as_deref().unwrap_or_default();
    let enough = if MIG_MODELS.iter().any(|known| model.contains(known)) {
        format!("a MIG instance {profile} of {:.0} GiB", gib(limit * memory))
    } else {
        format!("a board of {:.0} GiB", gib(limit * memory).ceil())
    };
    Some(format!("{enough} instead of {model}: {figures}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(busy: [f64; 2], gib: u64) -> DeviceReceipt {
        DeviceReceipt {
            model: Some("NVIDIA H100 80GB HBM3".into()),
            memory_limit_bytes: Some(80 << 30),
            utilization_mean: Some(busy[0]),
            utilization_peak: Some(busy[1]),
            memory_peak_bytes: Some(gib << 30),
            ..DeviceReceipt::default()
        }
    }

    fn advice(seconds: f64, devices: Vec<DeviceReceipt>) -> Vec<String> {
        let sum: f64 = devices.iter().filter_map(|device| device.utilization_mean).sum();
        let mean = Some(sum / devices.len() as f64);
        of(&Receipt { seconds, devices, utilization_mean: mean, ..Receipt::default() })
    }

    #[test]
    fn what_used_little_would_have_fitted_on_less() {
        let little = advice(3600.0, vec![device([0.04, 0.1], 8)]);
        assert_eq!(
            little,
            ["a MIG instance 1g of 10 GiB instead of NVIDIA H100 80GB HBM3: busy 4 % average and \
              10 % peak, 8.0 of 80.0 GiB peak"]
        );
        let unused = advice(3600.0, vec![device([0.9, 1.0], 70), device([0.0, 0.0], 1)]);
        assert_eq!(
            unused,
            [
                "fewer devices: 1 of 2 were busy for less than 1 % of the time; 1 would have been enough"
            ]
        );
    }

    #[test]
    fn nothing_is_advised_for_what_was_used_or_was_short() {
        assert_eq!(advice(3600.0, vec![device([0.2, 1.0], 8)]), [""; 0], "it had a peak");
        assert_eq!(advice(3600.0, vec![device([0.2, 0.3], 70)]), [""; 0], "it needed the memory");
        assert_eq!(advice(60.0, vec![device([0.01, 0.02], 1)]), [""; 0], "too short");
    }
}

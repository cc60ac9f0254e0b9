//! What wears out, what protects it, and what holds the clocks down, at a time.

use nvidia_ml::abi::wear::spread;
use nvidia_ml::curve::Curve;
use nvidia_ml::scenario::Device;

/// A metric, its dimensions and its value.
type Row = (&'static str, String, f64);

/// Every value of a device.
pub(crate) fn at(device: Device<'_>, seconds: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    heat(device, seconds, &mut rows);
    ecc(device, seconds, &mut rows);
    rows_and_pages(device, seconds, &mut rows);
    pcie(device, seconds, &mut rows);
    for (_, reason, curve) in device.group.held.states() {
        if let Some(curve) = curve {
            let on = f64::from(u8::from(device.value(curve, seconds) > 0.0));
            rows.push(("gpu.throttle.active", reason.to_owned(), on));
        }
    }
    if let Some([total, used]) = device.group.aperture {
        let (total, used) = (total as f64, used as f64);
        rows.push(("gpu.memory.aperture.usage", "used".to_owned(), used));
        rows.push(("gpu.memory.aperture.usage", "free".to_owned(), total - used));
        rows.push(("gpu.memory.aperture.limit", String::new(), total));
    }
    rows
}

fn heat(device: Device<'_>, seconds: f64, rows: &mut Vec<Row>) {
    let group = device.group;
    if let Some(margin) = &group.margin {
        let margin = device.value(margin, seconds).round();
        rows.push(("gpu.temperature.margin", String::new(), margin));
    }
    let words = ["shutdown", "slowdown", "memory_operating", "operating"];
    for (word, degrees) in words.iter().zip(group.temperature_limits.degrees.iter().flatten()) {
        rows.push(("gpu.temperature.limit", (*word).to_owned(), f64::from(*degrees)));
    }
    for (word, margin) in words.iter().zip(group.temperature_limits.margins.iter().flatten()) {
        rows.push(("gpu.temperature.margin.limit", (*word).to_owned(), f64::from(*margin)));
    }
}

fn ecc(device: Device<'_>, seconds: f64, rows: &mut Vec<Row>) {
    let Some(ecc) = &device.group.ecc else { return };
    let flag = |on: bool| f64::from(u8::from(on));
    rows.push(("gpu.ecc.enabled", String::new(), flag(ecc.enabled[0])));
    rows.push(("gpu.ecc.enabled.pending", String::new(), flag(ecc.enabled[1])));
    let memories = [
        ("dram", &ecc.dram),
        ("sram", &ecc.sram),
        ("l1", &ecc.l1),
        ("l2", &ecc.l2),
        ("registers", &ecc.registers),
        ("texture", &ecc.texture),
        ("barrier", &ecc.barrier),
    ];
    let counters = [
        ("volatile", "gpu.ecc.location.errors.volatile"),
        ("aggregate", "gpu.ecc.location.errors.aggregate"),
    ];
    for (counter, (count, by_memory)) in counters.into_iter().enumerate() {
        for (kind, error) in ["corrected", "uncorrected"].into_iter().enumerate() {
            let mut sum = 0.0;
            for (location, memory) in memories {
                let Some(memory) = memory else { continue };
                let errors = device.errors(memory, seconds)[counter][kind] as f64;
                sum += errors;
                // The driver does not tell what the barrier unit corrected.
                if (location, kind) != ("barrier", 0) {
                    rows.push((by_memory, format!("{error},{location}"), errors));
                }
            }
            rows.push(("gpu.ecc.errors", format!("{error},{count}"), sum));
        }
    }
    if let Some((sram, exceeded)) = ecc.sram.as_ref().zip(ecc.exceeded) {
        let (_, units) = spread(device.errors(sram, seconds)[1][1]);
        let words = ["l2", "sm", "pcie", "microcontroller", "other"];
        for (word, errors) in words.into_iter().zip(units) {
            rows.push(("gpu.ecc.sram.uncorrected", word.to_owned(), errors as f64));
        }
        rows.push(("gpu.ecc.sram.threshold_exceeded", String::new(), flag(exceeded)));
    }
}

fn rows_and_pages(device: Device<'_>, seconds: f64, rows: &mut Vec<Row>) {
    let count = |curve: &Curve| device.value(curve, seconds).round();
    let causes = |one: &Curve, other: &Curve| {
        [("corrected".to_owned(), count(one)), ("uncorrected".to_owned(), count(other))]
    };
    if let Some(remapped) = &device.group.remapped {
        for (cause, value) in causes(&remapped.corrected, &remapped.uncorrected) {
            rows.push(("gpu.memory.remapped_rows", cause, value));
        }
        rows.push(("gpu.memory.remap.pending", String::new(), count(&remapped.pending)));
        rows.push(("gpu.memory.remap.failed", String::new(), count(&remapped.failure)));
        let words = ["all", "high", "partial", "low", "none"];
        for (word, banks) in words.iter().zip(remapped.banks.iter().flatten()) {
            rows.push(("gpu.memory.banks", (*word).to_owned(), f64::from(*banks)));
        }
    }
    if let Some(retired) = &device.group.retired {
        for (cause, value) in causes(&retired.corrected, &retired.uncorrected) {
            rows.push(("gpu.memory.retired_pages", cause, value));
        }
        rows.push(("gpu.memory.retirement.pending", String::new(), count(&retired.pending)));
    }
}

fn pcie(device: Device<'_>, seconds: f64, rows: &mut Vec<Row>) {
    let Some(pcie) = &device.group.pcie else { return };
    let link = [
        ("gpu.pcie.link.generation", pcie.generation[0]),
        ("gpu.pcie.link.generation.limit", pcie.generation[1]),
        ("gpu.pcie.link.width", pcie.width[0]),
        ("gpu.pcie.link.width.limit", pcie.width[1]),
    ];
    rows.extend(link.map(|(name, value)| (name, String::new(), f64::from(value))));
    let count = |curve: &Curve| device.value(curve, seconds).round();
    if let Some(replays) = &pcie.replays {
        rows.push(("gpu.pcie.replays", String::new(), count(replays)));
    }
    for (error, curve) in &pcie.errors {
        rows.push(("gpu.pcie.errors", error.clone(), count(curve)));
    }
}

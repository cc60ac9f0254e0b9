//! Errors of the chip's memories by block (RAS), and pages taken out of use. Read at every sixth
//! reading, because the driver asks the firmware for each block; exported at every reading.
//!
//! A block has a file `BLOCK_err_count`, or `aca_BLOCK` with the newer error accounting
//! (`amdgpu_ras.c`), of lines `ue: 0`, `ce: 0` and from Linux 6.9 on `de: 0`.

use super::super::files::Files;
use crate::wire::{WireValue, push};
use gpuwho_model::catalog::wear as metric;
use gpuwho_model::catalog::wear::{
    Block, BlockError, EccCount, EccError, EccLocation, RetirementCause,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Limit on the files of the folder that are looked at.
const MAX_FILES: usize = 128;
/// A line of the list of pages has 28 bytes; a board with more than 9,000 bad pages is replaced.
const MAX_PAGES_BYTES: usize = 1 << 18;

/// Errors of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    corrected: i64,
    uncorrected: i64,
    deferred: Option<i64>,
}

/// Reads a device's files.
pub(super) fn read(device: &Path, files: &mut Files, out: &mut Vec<WireValue>) {
    let folder = device.join("ras");
    errors(&folder, files, out);
    pages(&folder, files, out);
}

fn errors(folder: &Path, files: &mut Files, out: &mut Vec<WireValue>) {
    let mask = files.text(&folder.join("features"));
    let mask = mask.and_then(|text| {
        let digits = text.strip_prefix("feature mask: 0x")?.split_whitespace().next()?;
        u32::from_str_radix(digits, 16).ok()
    });
    // The first bit is that of the memory controllers.
    push(out, &metric::ECC_ENABLED, (), mask.map(|mask| i64::from(mask & 1)));
    let Some(blocks) = blocks(folder, files) else { return };
    for (block, counts) in &blocks {
        for (kind, count) in [
            (BlockError::Corrected, Some(counts.corrected)),
            (BlockError::Uncorrected, Some(counts.uncorrected)),
            (BlockError::Deferred, counts.deferred),
        ] {
            if let Some(block) = Block::ALL.get(usize::from(*block)) {
                push(out, &metric::BLOCK_ERRORS, (kind, *block), count);
            }
        }
    }
    let memory = blocks.get(&(Block::Umc as u8));
    let mut report = |kind, of: fn(&Counts) -> i64| {
        let all = blocks.values().map(of).fold(0, i64::saturating_add);
        let sum = (!blocks.is_empty()).then_some(all);
        push(out, &metric::ECC_ERRORS, (kind, EccCount::Volatile), sum);
        push(out, &metric::ECC_VOLATILE, (kind, EccLocation::Dram), memory.map(of));
    };
    report(EccError::Corrected, |of| of.corrected);
    report(EccError::Uncorrected, |of| of.uncorrected);
}

/// The blocks with their errors; `None` if one of them cannot be read now (during a reset, for
/// example), because sums over the others would be too small.
fn blocks(folder: &Path, files: &mut Files) -> Option<BTreeMap<u8, Counts>> {
    let mut blocks: BTreeMap<u8, Counts> = BTreeMap::new();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_FILES);
    for entry in entries {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let block = name.strip_suffix("_err_count").or_else(|| name.strip_prefix("aca_"));
        let Some(block) = block else { continue };
        let counts = parse(&files.text(&entry.path())?)?;
        let known = Block::ALL.iter().find(|known| known.as_str() == block);
        let sum = blocks.entry(known.copied().unwrap_or(Block::Other) as u8).or_default();
        sum.corrected = sum.corrected.saturating_add(counts.corrected);
        sum.uncorrected = sum.uncorrected.saturating_add(counts.uncorrected);
        let deferred = counts.deferred.map(|more| more.saturating_add(sum.deferred.unwrap_or(0)));
        sum.deferred = deferred.or(sum.deferred);
    }
    Some(blocks)
}

/// Parses a block's lines.
fn parse(text: &str) -> Option<Counts> {
    let value = |key: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let (_, count) = lines.find(|(known, _)| known.trim() == key)?;
        count.trim().parse::<i64>().ok().filter(|count| *count >= 0)
    };
    Some(Counts { corrected: value("ce")?, uncorrected: value("ue")?, deferred: value("de") })
}

/// Pages out of use: lines `0x00000000 : 0x00001000 : R`, where `R` is out of use, `P` waits, and `F`
/// is still in use because the driver could not take it out.
fn pages(folder: &Path, files: &mut Files, out: &mut Vec<WireValue>) {
    let path = folder.join("gpu_vram_bad_pages");
    let Some(text) = files.long_text(&path, MAX_PAGES_BYTES) else { return };
    let states: Vec<_> = text.lines().filter_map(|line| line.rsplit(':').next()).collect();
    let count =
        |known: &[&str]| states.iter().filter(|state| known.contains(&state.trim())).count();
    let retired = i64::try_from(count(&["R"])).ok();
    push(out, &metric::RETIRED_PAGES, RetirementCause::Uncorrected, retired);
    let is_pending = count(&["P", "F"]) > 0;
    push(out, &metric::RETIREMENT_PENDING, (), Some(i64::from(is_pending)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocks_errors_are_what_its_lines_say() {
        let of = |corrected, uncorrected, deferred| Counts { corrected, uncorrected, deferred };
        assert_eq!(parse("ue: 2\nce: 7\n"), Some(of(7, 2, None)));
        assert_eq!(parse("ue: 0\nce: 7\nde: 3"), Some(of(7, 0, Some(3))));
        assert_eq!(parse("Query currently inaccessible"), None, "during a reset");
        assert_eq!(parse("ue: 2"), None);
        assert_eq!(parse("ue: -2\nce: 99999999999999999999"), None);
    }

    #[test]
    fn a_block_that_cannot_be_read_takes_the_sums_with_it_and_an_unknown_one_is_other() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        put("umc_err_count", "ue: 1\nce: 2\n");
        put("aca_gfx", "ue: 0\nce: 4\nde: 1\n");
        put("npu_err_count", "ue: 0\nce: 8\n");
        put("features", "feature mask: 0x3fff\n");
        let read = || {
            let mut out = Vec::new();
            errors(folder.path(), &mut Files::default(), &mut out);
            out
        };
        let total = |out: &[WireValue]| {
            let dims = (EccError::Corrected, EccCount::Volatile);
            out.iter().find_map(|value| value.int(&metric::ECC_ERRORS, dims))
        };
        let of = |out: &[WireValue], block| {
            let dims = (BlockError::Corrected, block);
            out.iter().find_map(|value| value.int(&metric::BLOCK_ERRORS, dims))
        };
        let all = read();
        assert_eq!(total(&all), Some(14));
        let by_block = [Block::Umc, Block::Gfx, Block::Other, Block::Sdma].map(|b| of(&all, b));
        assert_eq!(by_block, [Some(2), Some(4), Some(8), None]);
        put("umc_err_count", "Query currently inaccessible\n");
        assert_eq!((total(&read()), of(&read(), Block::Gfx)), (None, None));
    }
}

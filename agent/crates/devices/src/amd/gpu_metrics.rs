//! The driver's table of readings, the binary file `gpu_metrics`: one read for what has no file of its
//! own. The header states length and revision. A table whose length is not that of its revision, or
//! that is cut off, has no values. All ones mean no value.
//!
//! From revision 1.9 on each value is preceded by its unit, type, meaning and count
//! (`AMDGPU_METRICS_ENC_ATTR`); values that this file does not know are skipped.

mod layouts;

use layouts::LAYOUTS;
use std::borrow::Cow;

/// A value of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// Degrees Celsius of the regulators.
    VrGfxTemperature,
    VrSocTemperature,
    VrMemTemperature,
    /// Percent of each video engine.
    VideoBusy,
    JpegBusy,
    /// In 2^-16 J.
    Energy,
    /// Cycles of the firmware's accounting of throttle times, and those with each reason.
    Accumulations,
    Prochot,
    PowerLimited,
    SocketThermal,
    RegulatorThermal,
    MemoryThermal,
    /// Bits of throttle reasons, the same for all chips.
    ThrottleStatus,
    PcieRecoveries,
    PcieReplays,
    PcieRollovers,
    NaksSent,
    NaksReceived,
    /// Lanes and Gbit/s of each lane.
    LinkWidth,
    LinkSpeed,
    /// KiB by link.
    LinkRead,
    LinkWritten,
    LinkStatus,
    /// MHz.
    SocClock,
    VideoClock,
}

/// Where a value is: `count` numbers of `width` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    field: Field,
    at: usize,
    width: usize,
    count: usize,
}

/// Why a table has no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// It is not as long as its header or its revision says, or its attributes are not well formed.
    Malformed,
    /// No layout is known: format × 256 + content revision.
    Revision(u16),
}

/// A table.
#[derive(Debug)]
pub(super) struct Table {
    bytes: Vec<u8>,
    cells: Cow<'static, [Cell]>,
    partitions: Option<(usize, usize)>,
}

/// Bytes of the header.
const HEAD: usize = 4;
/// Engines of a partition in the table (`MAX_XCC`), each of 4 bytes.
const ENGINES: usize = 8;
/// Partitions in the table (`NUM_XCP`).
const PARTITIONS: usize = 8;

impl Table {
    /// Parses a table.
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self, Unreadable> {
        let Some([low, high, format, content]) = bytes.first_chunk::<HEAD>().copied() else {
            return Err(Unreadable::Malformed);
        };
        if usize::from(u16::from_le_bytes([low, high])) != bytes.len() {
            return Err(Unreadable::Malformed);
        }
        if (format, content) == (1, 9) {
            let cells = described(&bytes).ok_or(Unreadable::Malformed)?;
            return Ok(Self { bytes, cells: cells.into(), partitions: None });
        }
        let mut known = LAYOUTS.iter().filter(|layout| layout.revision == (format, content));
        let layout = known.clone().find(|layout| layout.length == bytes.len());
        match layout {
            Some(layout) => {
                Ok(Self { bytes, cells: layout.cells.into(), partitions: layout.partitions })
            }
            None if known.next().is_some() => Err(Unreadable::Malformed),
            None => Err(Unreadable::Revision(u16::from_be_bytes([format, content]))),
        }
    }

    /// Its format, of which each kind of device has its own.
    pub(super) fn format(&self) -> Option<u8> {
        self.bytes.get(2).copied()
    }

    /// The numbers of a field, in order; `None` for one without a value.
    pub(super) fn each(&self, field: Field) -> impl Iterator<Item = Option<u64>> {
        let cell = self.cells.iter().find(|cell| cell.field == field);
        cell.into_iter().flat_map(|cell| {
            (0..cell.count).map(|n| number(&self.bytes, cell.at + n * cell.width, cell.width))
        })
    }

    /// The first number of a field that has a value.
    pub(super) fn one(&self, field: Field) -> Option<u64> {
        self.each(field).flatten().next()
    }

    /// Percents of the engines of a partition.
    pub(super) fn partition(&self, number_of: usize) -> impl Iterator<Item = u64> {
        let first = self.partitions.filter(|_| number_of < PARTITIONS);
        let first = first.map(|(at, length)| at + number_of * length);
        first.into_iter().flat_map(move |at| {
            (0..ENGINES).filter_map(move |engine| number(&self.bytes, at + engine * 4, 4))
        })
    }
}

/// A little-endian number; `None` for all ones.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    let is_value = bytes.iter().any(|byte| *byte != 0xff);
    is_value.then(|| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// The cells of a table that describes itself; `None` if it is not well formed.
fn described(bytes: &[u8]) -> Option<Vec<Cell>> {
    const ATTRIBUTE: usize = 8;
    let count = i32::from_le_bytes(bytes.get(HEAD..2 * HEAD)?.try_into().ok()?);
    let mut cells = Vec::new();
    let mut at = 2 * HEAD;
    // Each takes at least nine bytes of the table, so a wrong count ends early.
    for _ in 0..count.max(0) {
        let head = bytes.get(at..at + ATTRIBUTE)?;
        let encoding = u64::from_le_bytes(head.try_into().ok()?);
        let part = |shift: u32, mask: u64| usize::try_from(encoding >> shift & mask).ok();
        let (unit, kind) = (part(24, 0xff)?, part(20, 0xf)?);
        let (id, count) = (part(10, 0x3ff)?, part(0, 0x3ff)?);
        // Types come in pairs, unsigned and signed, of 1, 2, 4 and 8 bytes.
        let width = 1 << (kind / 2).min(4);
        let end = at + ATTRIBUTE + width * count;
        if width > 8 || count == 0 || end > bytes.len() {
            return None;
        }
        let field = ATTRIBUTES.iter().find(|known| (known.0, known.1) == (id, unit));
        cells.extend(field.map(|(.., field)| Cell {
            field: *field,
            at: at + ATTRIBUTE,
            width,
            count,
        }));
        at = end;
    }
    Some(cells)
}

/// Units of `amdgpu_metrics_attr_unit`.
const NONE: usize = 0;
const MEGAHERTZ: usize = 1;
const CELSIUS: usize = 2;
const GIGATRANSFERS: usize = 6;
const KIB: usize = 9;
const PERCENT: usize = 10;

/// The attributes that are read, by their numbers in `amdgpu_metrics_attr_id` and their units; the same
/// attribute in another unit is another.
const ATTRIBUTES: &[(usize, usize, Field)] = &[
    (2, CELSIUS, Field::VrSocTemperature),
    (7, NONE, Field::Energy),
    (9, NONE, Field::Accumulations),
    (10, NONE, Field::Prochot),
    (11, NONE, Field::PowerLimited),
    (12, NONE, Field::SocketThermal),
    (13, NONE, Field::RegulatorThermal),
    (14, NONE, Field::MemoryThermal),
    (18, NONE, Field::LinkWidth),
    (19, NONE, Field::LinkSpeed),
    (19, GIGATRANSFERS, Field::LinkSpeed),
    (24, NONE, Field::PcieRecoveries),
    (25, NONE, Field::PcieReplays),
    (26, NONE, Field::PcieRollovers),
    (27, NONE, Field::NaksSent),
    (28, NONE, Field::NaksReceived),
    (29, KIB, Field::LinkRead),
    (30, KIB, Field::LinkWritten),
    (31, NONE, Field::LinkStatus),
    (34, MEGAHERTZ, Field::SocClock),
    (35, MEGAHERTZ, Field::VideoClock),
    (41, PERCENT, Field::JpegBusy),
    (42, PERCENT, Field::VideoBusy),
];

/// Parses any bytes and reads every value, for the fuzz target.
#[cfg(any(test, feature = "fixtures"))]
pub(crate) fn read_any(bytes: &[u8]) {
    let Ok(table) = Table::parse(bytes.to_vec()) else { return };
    for cell in table.cells.iter() {
        assert!(table.each(cell.field).count() <= bytes.len(), "more values than bytes");
    }
    let engines = (0..=PARTITIONS).map(|partition| table.partition(partition).count());
    assert!(engines.max() <= Some(ENGINES), "more engines than there are");
}

#[cfg(test)]
mod tests;

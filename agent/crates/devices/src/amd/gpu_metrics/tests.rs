use super::layouts::{LAYOUTS, Layout};
use super::*;

/// A table of a layout with these bytes after its head.
fn table(layout: &Layout, fill: u8) -> Vec<u8> {
    headed(layout.revision, vec![fill; layout.length - HEAD])
}

fn headed((format, content): (u8, u8), body: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(HEAD + body.len()).unwrap().to_le_bytes();
    [vec![length[0], length[1], format, content], body].concat()
}

fn of(revision: (u8, u8), length: usize) -> &'static Layout {
    LAYOUTS.iter().find(|known| known.revision == revision && known.length == length).unwrap()
}

#[test]
fn the_values_of_every_revision_are_inside_it_and_apart() {
    for layout in LAYOUTS {
        let spans = layout.cells.iter().map(|cell| (cell.at, cell.at + cell.width * cell.count));
        let mut spans: Vec<_> = spans.collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|two| two[0].1 <= two[1].0), "{:?}", layout.revision);
        assert!(spans.iter().all(|span| span.0 >= HEAD && span.1 <= layout.length));
        assert!(layout.cells.iter().all(|cell| cell.at % cell.width == 0), "C aligns them");
        let partitions = layout.partitions.map_or(0, |(at, length)| at + length * PARTITIONS);
        assert!(partitions <= layout.length);
    }
}

#[test]
fn all_ones_are_no_value_in_any_revision() {
    for layout in LAYOUTS {
        let table = Table::parse(table(layout, 0xff)).unwrap();
        for cell in layout.cells {
            assert!(table.each(cell.field).all(|value| value.is_none()), "{:?}", cell.field);
            assert_eq!(table.each(cell.field).count(), cell.count);
            assert_eq!(table.one(cell.field), None);
        }
        assert!((0..9).all(|n| table.partition(n).count() == 0));
    }
}

#[test]
fn a_table_of_another_length_is_malformed_and_an_unknown_revision_has_its_number() {
    for layout in LAYOUTS {
        let whole = table(layout, 1);
        for length in (0..whole.len()).step_by(7) {
            let cut = Table::parse(whole[..length].to_vec()).err();
            assert_eq!(cut, Some(Unreadable::Malformed), "{:?} {length}", layout.revision);
        }
        let longer = headed(layout.revision, vec![1; layout.length + 8]);
        assert_eq!(Table::parse(longer).err(), Some(Unreadable::Malformed));
    }
    let unknown = |revision| Table::parse(headed(revision, vec![1; 100])).err();
    assert_eq!(unknown((1, 10)), Some(Unreadable::Revision(266)));
    assert_eq!(unknown((4, 0)), Some(Unreadable::Revision(1024)));
}

/// Offsets of `kgd_pp_interface.h`, counted by hand.
#[test]
fn a_value_is_where_the_kernels_structure_has_it() {
    for (revision, length, field, at, width) in [
        ((1, 3), 120, Field::Energy, 24, 8),
        ((1, 3), 120, Field::ThrottleStatus, 112, 8),
        ((1, 3), 120, Field::VrGfxTemperature, 10, 2),
        ((1, 4), 288, Field::Energy, 24, 8),
        ((1, 4), 288, Field::LinkRead, 104, 8),
        ((1, 5), 360, Field::Energy, 88, 8),
        ((1, 6), 1664, Field::Energy, 16, 8),
        ((1, 6), 1664, Field::Accumulations, 32, 4),
        ((1, 6), 1664, Field::LinkWritten, 192, 8),
        ((1, 7), 2208, Field::Energy, 24, 8),
        ((1, 7), 2208, Field::MemoryThermal, 60, 4),
        ((1, 7), 2208, Field::LinkStatus, 264, 2),
        ((1, 8), 3360, Field::SocClock, 312, 2),
        ((2, 2), 128, Field::ThrottleStatus, 120, 8),
    ] {
        let mut bytes = table(of(revision, length), 0xff);
        bytes[at..at + width].copy_from_slice(&258_u64.to_le_bytes()[..width]);
        let table = Table::parse(bytes).unwrap();
        assert_eq!(table.one(field), Some(258), "{revision:?} {field:?}");
    }
}

#[test]
fn a_partitions_engines_are_its_own() {
    let mut bytes = table(of((1, 7), 2208), 0xff);
    let second = 344 + 232;
    bytes[second..second + 8].copy_from_slice(&[50, 0, 0, 0, 70, 0, 0, 0]);
    let table = Table::parse(bytes).unwrap();
    assert!(table.partition(1).eq([50, 70]));
    assert_eq!(table.partition(0).count() + table.partition(2).count(), 0);
    assert_eq!(table.partition(usize::MAX).count(), 0);
}

fn attribute(unit: u64, kind: u64, id: u64, count: u64, values: &[u8]) -> Vec<u8> {
    let encoding: u64 = unit << 24 | kind << 20 | id << 10 | count;
    [encoding.to_le_bytes().as_slice(), values].concat()
}

/// Revision 1.9 with these attributes; the count may lie.
fn described(count: i32, attributes: &[Vec<u8>]) -> Result<Table, Unreadable> {
    let body = [count.to_le_bytes().as_slice(), &attributes.concat()].concat();
    Table::parse(headed((1, 9), body))
}

#[test]
fn from_1_9_on_values_are_found_by_their_descriptions() {
    let energy = attribute(0, 6, 7, 1, &(5_u64 << 16).to_le_bytes());
    let unknown = attribute(3, 2, 900, 2, &[1, 2, 3, 4]);
    let celsius = attribute(2, 2, 2, 1, &[61, 0]);
    let fahrenheit = attribute(77, 2, 2, 1, &[142, 0]);
    let table = described(3, &[unknown.clone(), energy.clone(), celsius]).unwrap();
    assert_eq!(table.one(Field::Energy), Some(5 << 16));
    assert_eq!(table.one(Field::VrSocTemperature), Some(61));
    let table = described(2, &[energy.clone(), fahrenheit]).unwrap();
    assert_eq!(table.one(Field::VrSocTemperature), None, "in another unit");
    assert!(described(0, &[]).is_ok());
    for (count, attributes) in [
        (2, vec![energy.clone()]),
        (i32::MAX, vec![energy.clone()]),
        (1, vec![energy[..12].to_vec()]),
        (1, vec![attribute(0, 6, 7, 0, &[])]),
        (1, vec![attribute(0, 8, 7, 1, &[0; 16])]),
        (1, vec![attribute(0, 6, 7, 1023, &[0; 80])]),
    ] {
        assert_eq!(described(count, &attributes).err(), Some(Unreadable::Malformed), "{count}");
    }
}

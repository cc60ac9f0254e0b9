//! The encoder allocates nothing once it has seen the series; for large requests its buffer alone.

use crate::points;
use gpuwho_export::otlp::encode::{Encoder, Limits};
use gpuwho_export::resource::Resource;
use gpuwho_model::catalog::attributes::AttrSet;

/// Bytes that a batch of so many points has, and what its second encoding allocates and keeps.
fn steady_tick(count: usize) -> (usize, [i64; 3]) {
    let settings = crate::settings(&crate::raw("localhost"));
    let limits = Limits { points: count, ..Limits::default() };
    let mut encoder =
        Encoder::new(&Resource::new(&AttrSet::new(), &settings.resource_attributes), limits);
    let batch = points(1, count);
    let (mut bytes, mut sent) = (0, 0);
    encoder.encode(&batch, &mut |body, _| bytes += body.len());
    let measured = allocation_counter::measure(|| {
        encoder.encode(&batch, &mut |_, points| sent += points);
    });
    assert_eq!(sent, count);
    let [all, all_bytes] = [measured.count_total, measured.bytes_total].map(u64::cast_signed);
    (bytes, [all, all_bytes, measured.count_current])
}

#[test]
fn steady_tick_allocates_nothing() {
    let (bytes, allocated) = steady_tick(960);
    assert!(bytes > 40_000, "{bytes}");
    assert_eq!(allocated, [0, 0, 0]);
}

#[test]
fn the_buffer_of_a_large_request_is_given_back() {
    let (bytes, allocated) = steady_tick(20_000);
    assert!((768 << 10..1 << 20).contains(&bytes), "{bytes}");
    assert_eq!(allocated, [1, 1 << 20, 0]);
}

//! The encoder allocates its buffer once a batch and nothing else, once it has seen the series.

use crate::points;
use gpuwho::catalog::attributes::AttrSet;
use gpuwho::export::otlp::Resource;
use gpuwho::export::otlp::encode::{Encoder, Limits};

#[test]
fn steady_tick_allocates_only_the_buffer_that_is_given_back() {
    let settings = crate::settings(&crate::raw("localhost"));
    let mut encoder = Encoder::new(&Resource::new(&AttrSet::new(), &settings), Limits::default());
    let batch = points(1, 960);
    let (mut bytes, mut sent) = (0, 0);
    encoder.encode(&batch, &mut |body, _| bytes += body.len());
    let measured = allocation_counter::measure(|| {
        encoder.encode(&batch, &mut |_, points| sent += points);
    });
    assert!(bytes > 40_000, "{bytes}");
    assert_eq!((sent, measured.count_total, measured.count_current), (960, 1, 0));
    assert_eq!(measured.bytes_total, Limits::default().bytes as u64);
}

//! What happens to a batch between source and sink.
//!
//! Owns shares ([`accounting`]), cost and receipts, events, health, the look-up of identities, and the
//! series with their limit. May use `owners`, `model` and `sys`. Knows no source and no sink.
//!
//! Rooms, from below: `accounting`, `event`, `identity`, `cost`, `health`, `series`.

#![forbid(unsafe_code)]

pub mod accounting;
pub mod cost;
pub mod event;
pub mod health;
pub mod identity;
pub mod series;

//! What the other tests stand on: it does what they take for granted.

mod collector;
mod containerd;
mod readme;
mod stage;

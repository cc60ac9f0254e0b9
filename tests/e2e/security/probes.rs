//! One tenant that fills the probe maps or drives the probe budget of others.

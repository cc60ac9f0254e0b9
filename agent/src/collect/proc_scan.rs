//! Finding device holders without BPF.

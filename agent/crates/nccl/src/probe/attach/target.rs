//! A library's file as the probes need it: its functions, their offsets, and the cookie by which
//! the programs identify function, library and kind of instruction.

use crate::probe::libraries::elf::Exports;
use gpuwho_common::nccl::{Ask, COOKIE_LIBRARY, COOKIE_STEPPED, Does, SYMBOLS, Symbol};
use gpuwho_sys::uprobes::Place;
use std::path::Path;

/// A library's file.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Target<'a> {
    /// A path by which it can be opened.
    pub file: &'a Path,
    pub exports: &'a Exports,
    /// The programs' number of the file; not 0.
    pub number: u32,
}

impl Target<'_> {
    /// The cookie of a function.
    fn cookie(&self, row: usize) -> u64 {
        let stepped = if self.exports.stepped.contains(&row) { COOKIE_STEPPED } else { 0 };
        row as u64 | stepped | u64::from(self.number) << COOKIE_LIBRARY
    }
}

/// A function of a file: its row in the table, its symbol, and its file offset.
pub(super) type ProbedFunction = (usize, &'static Symbol, u64);

/// The functions of a file.
pub(super) fn rows(exports: &Exports) -> impl Iterator<Item = ProbedFunction> {
    let entries = exports.entries.iter();
    entries.filter_map(|(row, offset)| Some((*row, SYMBOLS.get(*row)?, *offset)))
}

/// Whether only the return of a function gives its duration.
pub(super) fn is_timed(symbol: &Symbol) -> bool {
    matches!(symbol.does, Does::Call(_) | Does::GroupEnd)
}

/// Whether the return of a function is probed even if operations are not timed.
pub(super) fn is_about_communicators(symbol: &Symbol) -> bool {
    match symbol.does {
        Does::Birth(_) | Does::Death(_) => true,
        Does::Question(ask) => ask != Ask::Words,
        Does::Call(_) | Does::GroupStart | Does::GroupEnd => false,
    }
}

/// The offsets and cookies of functions.
pub(super) fn places(target: &Target<'_>, wanted: impl Fn(&Symbol) -> bool) -> Vec<Place> {
    let rows = rows(target.exports).filter(|(_, symbol, _)| wanted(symbol));
    rows.map(|(row, _, offset)| Place { offset, cookie: target.cookie(row) }).collect()
}

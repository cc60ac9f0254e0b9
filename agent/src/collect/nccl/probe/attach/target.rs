//! A library's file as the probes take it: its functions, their places, and the cookie by which the
//! programs tell function, library and kind of instruction.

use crate::collect::nccl::probe::libraries::elf::Exports;
use crate::sys::uprobes::Place;
use gpuwho_common::nccl::{Ask, COOKIE_LIBRARY, COOKIE_STEPPED, Does, SYMBOLS, Symbol};
use std::path::Path;

/// A library's file.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Target<'a> {
    /// Where it can be opened.
    pub file: &'a Path,
    pub exports: &'a Exports,
    /// By which the programs tell it from others; not 0.
    pub number: u32,
}

impl Target<'_> {
    /// What the programs are told at a function.
    fn cookie(&self, row: usize) -> u64 {
        let stepped = if self.exports.stepped.contains(&row) { COOKIE_STEPPED } else { 0 };
        row as u64 | stepped | u64::from(self.number) << COOKIE_LIBRARY
    }
}

/// A function of a file: its place in the table, what it is, and its place in the file.
pub(super) type ProbedFunction = (usize, &'static Symbol, u64);

/// The functions of a file.
pub(super) fn rows(exports: &Exports) -> impl Iterator<Item = ProbedFunction> {
    let entries = exports.entries.iter();
    entries.filter_map(|(row, offset)| Some((*row, SYMBOLS.get(*row)?, *offset)))
}

/// What only returns tell of.
pub(super) fn is_timed(symbol: &Symbol) -> bool {
    matches!(symbol.does, Does::Call(_) | Does::GroupEnd)
}

/// Those whose returns are seen also where operations are not timed.
pub(super) fn is_about_communicators(symbol: &Symbol) -> bool {
    match symbol.does {
        Does::Birth(_) | Does::Death(_) => true,
        Does::Question(ask) => ask != Ask::Words,
        Does::Call(_) | Does::GroupStart | Does::GroupEnd => false,
    }
}

/// Where functions are probed, and what the programs are told there.
pub(super) fn places(target: &Target<'_>, wanted: impl Fn(&Symbol) -> bool) -> Vec<Place> {
    let rows = rows(target.exports).filter(|(_, symbol, _)| wanted(symbol));
    rows.map(|(row, _, offset)| Place { offset, cookie: target.cookie(row) }).collect()
}

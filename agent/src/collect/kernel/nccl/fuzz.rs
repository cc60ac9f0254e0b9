//! What the fuzz targets call (`tests/fuzz`).

use super::elf;
use std::fs::File;

/// Any bytes in a file as a library that a process maps.
pub fn library(file: &File) {
    // Each outcome is an answer.
    let _ = elf::exports(file);
    let _ = elf::version(file);
    let _ = elf::code(file, &["CommInitRank"]);
}

//! What the fuzz target calls (`tests/fuzz`): any bytes as two pages of an engine.

use super::page::PageReader;
use gpuwho_model::ids::EngineId;
use gpuwho_model::sample::Batch;
use std::time::UNIX_EPOCH;

/// Reads the two halves by one reader, and the second by a new one; whether both say the same of it.
pub fn pages(bytes: &[u8]) -> bool {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let mut warm = PageReader::new();
    // What it leaves behind is what matters.
    let _ = read(&mut warm, first);
    read(&mut warm, second) == read(&mut PageReader::new(), second)
}

fn read(reader: &mut PageReader, page: &[u8]) -> String {
    let mut batch = Batch::new("engine", UNIX_EPOCH);
    match reader.read(page, EngineId(0), &mut batch) {
        Ok(_) => format!("{:?}", batch.samples),
        Err(error) => error.to_string(),
    }
}

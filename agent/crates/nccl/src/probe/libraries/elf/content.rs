//! Reads a bounded number of bytes of a file. Beyond the bound the file appears to end, so that a
//! large or sparse file, or endless chains in it, cannot consume time.

use object::pod::{Pod, from_bytes, slice_from_bytes};
use object::{LittleEndian as LE, U32};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;

/// Block size for small reads, because tables are read word by word; longer pieces are read
/// directly.
const BLOCK: usize = 16 << 10;
/// Number of cached blocks: a name is looked up in five tables.
const MAX_BLOCKS: usize = 8;

/// A source of bytes.
pub(in super::super::super) trait ReadAt {
    /// Reads up to `room.len()` bytes; none beyond the end.
    fn read_at(&self, room: &mut [u8], at: u64) -> io::Result<usize>;
    /// The size in bytes.
    fn size(&self) -> io::Result<u64>;
}

impl ReadAt for File {
    fn read_at(&self, room: &mut [u8], at: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, room, at)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// A file with a read budget.
pub(super) struct Content<'a> {
    file: &'a dyn ReadAt,
    size: u64,
    /// Bytes that may still be read.
    left: Cell<u64>,
    /// The cached blocks: number and bytes.
    blocks: RefCell<Vec<(u64, Vec<u8>)>>,
}

impl<'a> Content<'a> {
    pub(super) fn new(file: &'a dyn ReadAt, limit: u64) -> io::Result<Self> {
        let size = file.size()?;
        Ok(Self { file, size, left: Cell::new(limit), blocks: RefCell::default() })
    }

    /// Size of the file.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Reads up to `length` bytes.
    pub(super) fn bytes(&self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        if at >= self.size {
            return Ok(Vec::new());
        }
        if length > BLOCK {
            return self.fetch(at, length);
        }
        let mut found = Vec::with_capacity(length);
        while found.len() < length {
            let place = at.saturating_add(found.len() as u64);
            let (number, into) = (place / BLOCK as u64, place % BLOCK as u64);
            let into = usize::try_from(into).unwrap_or(BLOCK);
            let wanted = length - found.len();
            let taken = self.block(number, |block| {
                let rest = block.get(into..).unwrap_or_default();
                let part = rest.get(..wanted).unwrap_or(rest);
                found.extend_from_slice(part);
                part.len()
            })?;
            if taken == 0 {
                break;
            }
        }
        Ok(found)
    }

    /// Reads a block, from the cache if it is there.
    fn block<T>(&self, number: u64, use_block: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let mut blocks = self.blocks.borrow_mut();
        if let Some((_, block)) = blocks.iter().find(|(cached, _)| *cached == number) {
            return Ok(use_block(block));
        }
        let block = self.fetch(number.saturating_mul(BLOCK as u64), BLOCK)?;
        let found = use_block(&block);
        if blocks.len() >= MAX_BLOCKS {
            blocks.remove(0);
        }
        blocks.push((number, block));
        Ok(found)
    }

    /// Reads up to `length` bytes within the file and the budget.
    fn fetch(&self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        let left = usize::try_from(self.left.get()).unwrap_or(usize::MAX);
        let there = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut buffer = vec![0; length.min(there).min(left)];
        // A short piece costs a system call as well.
        self.left.set(self.left.get().saturating_sub(buffer.len().max(BLOCK) as u64));
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, at.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The offset is beyond the maximum file size.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                Err(error) => return Err(error),
            }
        }
        buffer.truncate(filled);
        Ok(buffer)
    }

    /// Reads one record; `None` if the file ends before.
    pub(super) fn read<T: Pod>(&self, at: u64) -> io::Result<Option<T>> {
        let bytes = self.bytes(at, size_of::<T>())?;
        Ok(from_bytes::<T>(&bytes).ok().map(|(record, _)| *record))
    }

    /// Reads a 32-bit number.
    pub(super) fn word(&self, at: u64) -> io::Result<Option<u32>> {
        Ok(self.read::<U32<LE>>(at)?.map(|word| word.get(LE)))
    }

    /// Reads up to `count` records.
    pub(super) fn read_all<T: Pod>(&self, at: u64, count: u64) -> io::Result<Vec<T>> {
        let length = usize::try_from(count).unwrap_or(0).saturating_mul(size_of::<T>());
        let bytes = self.bytes(at, length)?;
        let whole = slice_from_bytes::<T>(&bytes, bytes.len() / size_of::<T>());
        Ok(whole.map(|(records, _)| records.to_vec()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endless sparse file that counts the bytes read.
    struct Sparse(Cell<u64>);

    impl ReadAt for Sparse {
        fn read_at(&self, room: &mut [u8], _: u64) -> io::Result<usize> {
            self.0.set(self.0.get() + room.len() as u64);
            Ok(room.len())
        }

        fn size(&self) -> io::Result<u64> {
            Ok(1 << 60)
        }
    }

    #[test]
    fn a_file_ends_where_the_budget_is_spent() {
        let most = 1 << 20;
        let sparse = Sparse(Cell::new(0));
        let content = Content::new(&sparse, most).unwrap();
        let words = (0..).take_while(|at| content.word(at * BLOCK as u64).unwrap().is_some());
        assert_eq!(words.count() as u64, most / BLOCK as u64);
        assert_eq!(sparse.0.get(), most);
        let content = Content::new(&sparse, most).unwrap();
        assert_eq!(content.bytes(7, 64 << 20).unwrap().len() as u64, most);
        assert_eq!(content.bytes(7, 64 << 20).unwrap().len(), 0);
    }

    #[test]
    fn reads_across_blocks_are_complete_and_a_table_costs_one_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..=250).cycle().take(3 * BLOCK).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        let content = Content::new(&file, 1 << 20).unwrap();
        for at in [0, 5, BLOCK - 3, 2 * BLOCK - 1, 3 * BLOCK - 4] {
            assert_eq!(content.bytes(at as u64, 8).unwrap(), bytes[at..(at + 8).min(bytes.len())]);
        }
        let left = content.left.get();
        assert_eq!(content.bytes(100, 900).unwrap(), bytes[100..1_000]);
        assert_eq!(content.left.get(), left);
        assert_eq!(content.bytes(9, 3 * BLOCK).unwrap(), bytes[9..]);
    }
}

//! Keeps small what the allocator and the program's own pages hold without use.

#[cfg(target_env = "gnu")]
use libc::c_int;
use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Arenas of all threads together: they allocate little, and each arena keeps what was its peak.
#[cfg(target_env = "gnu")]
const MAX_ARENAS: c_int = 2;
/// Blocks from this size on are mapped on their own, so that freeing one returns it, and so much unused
/// memory is returned at the heap's end: more than what each tick takes and frees again, whose pages
/// would else be cleared every time. Without a fixed value glibc raises its own (128 KiB) to the
/// largest block that was ever freed, up to 32 MiB.
#[cfg(target_env = "gnu")]
const MAP_FROM_BYTES: c_int = 1024 * 1024;

/// Makes the allocator keep less. To be called before the first thread starts.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        (libc::M_ARENA_MAX, MAX_ARENAS),
        (libc::M_MMAP_THRESHOLD, MAP_FROM_BYTES),
        (libc::M_TRIM_THRESHOLD, MAP_FROM_BYTES),
    ] {
        // SAFETY: `mallopt` takes any option and value, and returns 0 for those that it refuses.
        unsafe {
            libc::mallopt(option, value);
        }
    }
}

/// Gives back what only the start needed, after the first reading of this process.
pub fn note_reading() {
    static HAS_READ: AtomicBool = AtomicBool::new(false);
    if !HAS_READ.swap(true, Ordering::Relaxed) {
        give_back();
        drop_program_pages();
    }
}

/// Unmaps the program's pages that were read from its file: those that are used again come back from
/// the page cache. After start-up, when most of what was run is not run again.
pub fn drop_program_pages() {
    let Ok(maps) = fs::read_to_string("/proc/self/smaps") else { return };
    for range in clean_pages(&maps) {
        // SAFETY: the pages of these mappings are all those of their files, unchanged (`clean_pages`),
        // and none is writable: the kernel reads a page that is dropped from its file again.
        unsafe {
            libc::madvise(range.start as *mut libc::c_void, range.len(), libc::MADV_DONTNEED);
        }
    }
}

/// The mappings of files that are not writable and have no page of their own, as `smaps` lists them:
/// a page that was changed (relocations, before they were made read-only) would be lost.
fn clean_pages(smaps: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut current: Option<Range<usize>> = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(field) = first.strip_suffix(':') {
            let is_own = field == "Anonymous" && words.next() != Some("0");
            if is_own {
                current = None;
            } else if field == "VmFlags" {
                found.extend(current.take());
            }
            continue;
        }
        let (flags, path) = (words.next().unwrap_or_default(), words.nth(3));
        let is_file = path.is_some_and(|path| path.starts_with('/'));
        let is_clean = is_file && flags.starts_with('r') && !flags.contains(['w', 's']);
        let ends = first.split_once('-').filter(|_| is_clean);
        let address = |text| usize::from_str_radix(text, 16).ok();
        current = ends.and_then(|(start, end)| Some(address(start)?..address(end)?));
    }
    found
}

/// Returns unused heap to the kernel, after a step that needed much more memory than later ones.
/// glibc returns only memory at the top of its heap, so a small block that outlives the step keeps
/// all of it.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes any padding, locks the arenas itself and moves no block.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unchanged_pages_of_files_are_dropped() {
        let mapping = |range: &str, flags: &str, path: &str, own: u32| {
            let own = format!("Rss: 8 kB\nAnonymous: {own} kB\nVmFlags: rd ex\n");
            format!("{range} {flags} 00000000 08:01 42 {path}\n{own}")
        };
        let smaps = [
            mapping("1000-3000", "r-xp", "/usr/bin/gpuwho", 0),
            mapping("3000-4000", "r--p", "/usr/bin/gpuwho", 4),
            mapping("4000-5000", "rw-p", "/usr/bin/gpuwho", 0),
            mapping("5000-6000", "r--s", "/run/shared", 0),
            mapping("6000-7000", "r-xp", "[vdso]", 0),
            mapping("7000-8000", "r--p", "", 0),
            mapping("8000-9000", "r--p", "/lib/libc.so.6 (deleted)", 0),
        ];
        assert_eq!(clean_pages(&smaps.concat()), [0x1000..0x3000, 0x8000..0x9000]);
    }

    #[test]
    fn a_program_runs_on_after_its_pages_were_dropped() {
        static TEXT: [u8; 8192] = [7; 8192];
        drop_program_pages();
        assert!(TEXT.iter().all(|byte| *byte == 7));
        keep_little();
        give_back();
    }
}

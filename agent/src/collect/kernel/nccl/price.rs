//! What a hit costs on this machine, tried on a function of the agent's own: a trap is 0.3 µs on one
//! processor and several on another, or in a virtual machine. Some milliseconds, once.

use super::many::Many;
use crate::paths::Paths;
use crate::sys::uprobes::{Place, tried, tried_at};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Of one core, for the probes of a process: what a budget in hits comes from.
const SHARE: f64 = 0.02;
/// A hit where it could not be tried.
pub(super) const USUAL: Duration = Duration::from_nanos(1_500);
/// The agent's own program at a hit, between two others (`cargo bench --bench nccl`).
const PROGRAM: Duration = Duration::from_nanos(500);
/// Calls in a row, and how often: the quickest row counts, since others only take time away.
const CALLS: u32 = 200;
const ROWS: usize = 9;

/// The hits a second that are the share at a price.
pub(super) fn budget(hit: Duration) -> u64 {
    // Positive and far below what a float holds exactly.
    (SHARE / hit.as_secs_f64().max(1e-9)) as u64
}

/// The price of a hit at an entry, and the link to be closed when there is time.
pub(super) fn of_a_hit(many: &Many, paths: &Paths) -> io::Result<(Duration, OwnedFd)> {
    let maps = fs::read_to_string(paths.proc.join("self/maps"))?;
    let place = offset(&maps, tried_at()).ok_or_else(|| io::Error::other("not in a file"))?;
    let without = quickest();
    // A row that the table does not have: the program finds nothing to do.
    let place = Place { offset: place, cookie: u64::MAX };
    let link = many.entries(Path::new("/proc/self/exe"), &[place])?;
    let with = quickest();
    Ok((with.saturating_sub(without) + PROGRAM, link))
}

fn quickest() -> Duration {
    let row = || {
        let begun = Instant::now();
        for _ in 0..CALLS {
            tried();
        }
        begun.elapsed() / CALLS
    };
    std::iter::repeat_with(row).take(ROWS).min().unwrap_or_default()
}

/// The place in its file of an address of this process.
fn offset(maps: &str, address: u64) -> Option<u64> {
    maps.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (begin, end) = fields.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (begin, end, at) = (hex(begin)?, hex(end)?, hex(fields.nth(1)?)?);
        (begin..end).contains(&address).then(|| at + (address - begin))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dear_trap_buys_fewer_hits() {
        assert_eq!(budget(Duration::from_nanos(500)), 40_000);
        assert_eq!(budget(Duration::from_micros(12)), 1_666);
    }

    #[test]
    fn an_address_is_found_in_its_file() {
        let maps = "1000-2000 r--p 00000000 08:01 7 /a\n2000-3000 r-xp 00001000 08:01 7 /a\n";
        assert_eq!(offset(maps, 0x2010), Some(0x1010));
        assert_eq!(offset(maps, 0x3000), None);
    }
}

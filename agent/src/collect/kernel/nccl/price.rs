//! What hits cost on this machine. What the kernel takes for one is tried on functions of the agent's
//! own: a trap is 0.3 µs on one processor and several on another, or in a virtual machine, and tenfold
//! where the kernel has to step through an instruction. What the programs take is the kernel's own
//! measure. Some milliseconds once, and a second of statistics now and then.

use super::many::Many;
use super::probes::Hold;
use crate::catalog::nccl::HitKind;
use crate::paths::Paths;
use crate::sys::uprobes::{Place, Trial};
use gpuwho_common::nccl::{
    COUNTERS, HIT_ENTRIES, HIT_RETURN, HIT_STEPPED, SYMBOLS, TRIED, TRIED_RETURN,
};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Of each second, for the probes of a process: two per cent of a core.
const SHARE: Duration = Duration::from_millis(20);
/// Calls in a row, and how often: the quickest row counts, since others only take time away.
const CALLS: u32 = 100;
const ROWS: u32 = 9;
/// Returns that a trial adds to the programs' count.
pub(super) const TRIED_RETURNS: u64 = (CALLS * ROWS) as u64;

/// The kernel's part of a hit by its kind, and the programs' at any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Price {
    /// At an instruction that the kernel carries out itself.
    pub entry: Duration,
    /// At one that it steps through.
    pub stepped: Duration,
    pub returned: Duration,
    pub program: Duration,
}

/// Where nothing could be tried: two processors' mean, and the programs' share between two others
/// (`cargo bench --bench nccl`).
pub(super) const USUAL: Price = Price {
    entry: Duration::from_micros(1),
    stepped: Duration::from_micros(8),
    returned: Duration::from_nanos(800),
    program: Duration::from_nanos(500),
};

/// Hits by function, and returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hits {
    entries: [u64; SYMBOLS.len()],
    /// Those that the kernel has stepped through, as far as the programs know it.
    stepped: [u64; SYMBOLS.len()],
    pub returns: u64,
}

impl Hits {
    /// Of the programs' counters.
    pub(super) fn of(counts: &[u64; COUNTERS as usize]) -> Self {
        let from = |first: u32| {
            let mut hits = [0; SYMBOLS.len()];
            let by_function = counts.get(first as usize..).unwrap_or_default();
            hits.iter_mut().zip(by_function).for_each(|(to, from)| *to = *from);
            hits
        };
        let returns = counts.get(HIT_RETURN as usize).copied().unwrap_or(0);
        Self { entries: from(HIT_ENTRIES), stepped: from(HIT_STEPPED), returns }
    }

    /// Those since an earlier moment.
    pub(super) fn since(mut self, before: &Self) -> Self {
        let entries = self.entries.iter_mut().zip(before.entries);
        let stepped = self.stepped.iter_mut().zip(before.stepped);
        entries.chain(stepped).for_each(|(now, then)| *now = now.saturating_sub(then));
        self.returns = self.returns.saturating_sub(before.returns);
        self
    }

    /// Entries of all functions.
    pub(super) fn entries(&self) -> u64 {
        self.entries.iter().chain(&self.stepped).sum()
    }
}

impl Price {
    /// A hit of the cheapest kind, in which the budget is counted.
    pub(super) fn plain(&self) -> Duration {
        self.entry + self.program
    }

    /// The plain hits a second that are the share.
    pub(super) fn budget(&self) -> u64 {
        u64::try_from(SHARE.as_nanos() / self.plain().as_nanos().max(1)).unwrap_or(u64::MAX)
    }

    /// How many plain hits take so many nanoseconds.
    pub(super) fn plain_hits(&self, ns: f64) -> u64 {
        // What is not a number of hits is none, or all.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it saturates, and a time is not negative"
        )]
        let hits = (ns / (self.plain().as_nanos() as f64).max(1.0)) as u64;
        hits
    }

    /// Nanoseconds that hits have cost those that made them. `stepped` are functions that the kernel steps through in a library in use and the programs do
    /// not know of.
    pub(super) fn paid(&self, hits: &Hits, stepped: &HashSet<usize>) -> u128 {
        let by_function = hits.entries.iter().zip(hits.stepped).enumerate();
        let entries = by_function.map(|(row, (count, count_stepped))| {
            let trap = if stepped.contains(&row) { self.stepped } else { self.entry };
            u128::from(*count) * (trap + self.program).as_nanos()
                + u128::from(count_stepped) * (self.stepped + self.program).as_nanos()
        });
        entries.sum::<u128>() + u128::from(hits.returns) * (self.returned + self.program).as_nanos()
    }

    /// By kind, in the catalogue's order.
    pub(super) fn parts(&self) -> [(HitKind, Duration); 4] {
        [
            (HitKind::Entry, self.entry),
            (HitKind::Stepped, self.stepped),
            (HitKind::Return, self.returned),
            (HitKind::Program, self.program),
        ]
    }
}

/// The kernel's part of hits, tried, and the links to be closed when there is time.
pub(super) fn tried(many: &Many, paths: &Paths) -> io::Result<(Price, Vec<Hold>)> {
    let maps = fs::read_to_string(paths.proc.join("self/maps"))?;
    let place = |trial: Trial, cookie| {
        let offset = offset(&maps, trial.address());
        offset
            .map(|offset| Place { offset, cookie })
            .ok_or_else(|| io::Error::other("not in a file"))
    };
    let through = place(Trial::Returning, TRIED_RETURN)?;
    let places = [place(Trial::CarriedOut, TRIED)?, place(Trial::Stepped, TRIED)?, through];
    let trials = [Trial::CarriedOut, Trial::Stepped, Trial::Returning];
    let without = trials.map(quickest);
    let this = Path::new("/proc/self/exe");
    // Returns first: a session has none of its own.
    let returns = many.returns(this, &[through])?;
    let entries = many.entries(this, &places)?;
    let with = trials.map(quickest);
    let [entry, stepped, both] = [0, 1, 2].map(|at: usize| {
        let of = |all: &[Duration; 3]| all.get(at).copied().unwrap_or_default();
        of(&with).saturating_sub(of(&without))
    });
    let holds = returns.into_iter().chain([entries]).map(Hold::Many).collect();
    let (stepped, returned) = (stepped.max(entry), both.saturating_sub(entry));
    Ok((Price { entry, stepped, returned, program: USUAL.program }, holds))
}

fn quickest(trial: Trial) -> Duration {
    let row = || {
        let begun = Instant::now();
        for _ in 0..CALLS {
            trial.call();
        }
        begun.elapsed() / CALLS
    };
    std::iter::repeat_with(row).take(ROWS as usize).min().unwrap_or_default()
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

    fn price(entry: u64, stepped: u64) -> Price {
        let ns = Duration::from_nanos;
        Price { entry: ns(entry), stepped: ns(stepped), returned: ns(700), program: ns(300) }
    }

    fn hits(of: &[(&str, u64)], returns: u64) -> Hits {
        let mut entries = [0; SYMBOLS.len()];
        for (name, count) in of {
            entries[SYMBOLS.iter().position(|symbol| symbol.name == *name).unwrap()] = *count;
        }
        Hits { entries, stepped: [0; SYMBOLS.len()], returns }
    }

    #[test]
    fn a_dear_trap_buys_fewer_hits() {
        assert_eq!(price(200, 200).budget(), 40_000);
        assert_eq!(price(11_700, 11_700).budget(), 1_666);
    }

    #[test]
    fn a_function_that_is_stepped_through_costs_what_that_takes() {
        let row = SYMBOLS.iter().position(|symbol| symbol.name == "Bcast").unwrap();
        let stepped = HashSet::from([row]);
        let hits = hits(&[("AllReduce", 900), ("Bcast", 100)], 1_000);
        let paid = price(900, 11_700).paid(&hits, &stepped);
        assert_eq!(paid, 900 * 1_200 + 100 * 12_000 + 1_000 * 1_000);
        let paid = price(900, 11_700).paid(&hits, &HashSet::new());
        assert_eq!(paid, 1_000 * 1_200 + 1_000 * 1_000);
    }

    #[test]
    fn of_two_libraries_each_hit_costs_what_its_own_takes() {
        // As the programs count them: half of the calls in a library that is stepped through.
        let mut hits = hits(&[("AllReduce", 500)], 0);
        hits.stepped = hits.entries;
        let paid = price(900, 11_700).paid(&hits, &HashSet::new());
        assert_eq!(paid, 500 * 1_200 + 500 * 12_000);
        assert_eq!(hits.entries(), 1_000);
    }

    #[test]
    fn hits_are_taken_from_their_places_among_the_counters() {
        let mut counts = [0; COUNTERS as usize];
        counts[HIT_RETURN as usize] = 5;
        counts[HIT_ENTRIES as usize] = 7;
        counts[HIT_STEPPED as usize + 1] = 2;
        let now = Hits::of(&counts);
        let mut wanted = hits(&[("AllReduce", 7)], 5);
        wanted.stepped[1] = 2;
        assert_eq!(now, wanted);
        let new = now.since(&hits(&[("AllReduce", 3)], 1));
        assert_eq!((new.entries(), new.returns), (6, 4));
    }

    #[test]
    fn an_address_is_found_in_its_file() {
        let maps = "1000-2000 r--p 00000000 08:01 7 /a\n2000-3000 r-xp 00001000 08:01 7 /a\n";
        assert_eq!(offset(maps, 0x2010), Some(0x1010));
        assert_eq!(offset(maps, 0x3000), None);
    }
}

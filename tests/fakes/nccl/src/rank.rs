//! The orders of a rank, and carrying them out.
//!
//! | Order | Answer |
//! |---|---|
//! | `load PATH`, `load-aside PATH` | `ok`; the second by another thread |
//! | `id` | the unique id in hex |
//! | `own-id` | the one from which the last `all` was made |
//! | `config none` | `ok`; what is made from now on is made with a null configuration |
//! | `config name TEXT` | `ok`; with one that has this name, in hex (`-`: none) |
//! | `config endless TEXT` | `ok`; with one whose name ends where the memory does |
//! | `config bad SIZE MAGIC ADDRESS` | `ok`; with one that begins so and has its name there |
//! | `init NAME RANKS RANK ID [config or scalable]` | result |
//! | `all NAME RANKS` | result; the communicators are `NAME0`, `NAME1`, … |
//! | `split NAME COLOR KEY NEW`, `shrink NAME NEW RANK…` | result |
//! | `grow-id NAME` | the id for those that will be added, in hex |
//! | `grow NAME NEW RANKS` | result; for who is in it |
//! | `join NEW RANKS RANK ID` | result; for who is added |
//! | `finalize NAME`, `destroy NAME`, `abort NAME`, `revoke NAME` | result |
//! | `count NAME`, `rank NAME`, `error NAME` | result and answer |
//! | `call TIMES OPERATION NAME COUNT DATATYPE` | last result |
//! | `pace TIMES RATE OPERATION NAME COUNT DATATYPE` | nanoseconds of a call: median, mean of the quicker 99 % |
//! | `storm MILLISECONDS OPERATION NAME COUNT DATATYPE` | calls, CPU nanoseconds of one |
//! | `wild FUNCTION WORD…` | result, if it comes back: up to eleven words wherever arguments are |
//! | `group TIMES OPERATION NAME COUNT DATATYPE` | result |
//! | `simulate TIMES OPERATION NAME COUNT DATATYPE` | result; a group that is not launched |
//! | `ras FILE` | `ok`; from now on clients are answered like [`crate::ras`] says |
//! | `take NANOSECONDS`, `hang`, `fail RESULT`, `break NAME RESULT` | `ok` |
//!
//! `-` is a communicator that is null, and `@ADDRESS` one that never was.

use crate::abi::{Handle, UniqueId};
use crate::config::{Config, Configuration};
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::io::{self, BufRead, Write};
use std::mem::transmute;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

/// The least time between two calls: no call of the real library takes less. The probe takes two entries
/// within half of it for one, of a function with two names.
const LEAST: Duration = Duration::from_micros(1);
/// Words that a paced rank works on between two calls: as much as the nearest cache holds, twice.
const OTHER_WORK: usize = 8_192;

/// Why an order was not carried out.
#[derive(Debug)]
pub struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn refused(what: impl Into<String>) -> Refused {
    Refused(what.into())
}

/// A function that is linked into the program.
pub type Linked = (&'static str, *mut c_void);

/// Carries out orders until there are no more, with the functions of the library that is loaded
/// or, before any is, those that are linked into the program.
pub fn serve(orders: impl BufRead, mut answers: impl Write, linked: &[Linked]) -> io::Result<()> {
    let linked = linked.iter().copied().collect();
    let (library, communicators) = (ptr::null_mut(), HashMap::new());
    let mut rank = Rank { library, linked, communicators, config: None };
    for order in orders.lines() {
        let order = order?;
        let words: Vec<&str> = order.split_ascii_whitespace().collect();
        match rank.carry_out(&words) {
            Ok(answer) => writeln!(answers, "{answer}")?,
            Err(error) => writeln!(answers, "refused: {order}: {error}")?,
        }
        answers.flush()?;
    }
    Ok(())
}

struct Rank {
    library: *mut c_void,
    linked: HashMap<&'static str, *mut c_void>,
    communicators: HashMap<String, Handle>,
    /// What communicators are made with.
    config: Option<Configuration>,
}

type InitRank = unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> u32;
type InitConfig = unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int, *const Config) -> u32;
type InitScalable =
    unsafe extern "C" fn(*mut Handle, c_int, c_int, c_int, *const UniqueId, *const Config) -> u32;
type InitAll = unsafe extern "C" fn(*mut Handle, c_int, *const c_int) -> u32;
type Split = unsafe extern "C" fn(Handle, c_int, c_int, *mut Handle, *const Config) -> u32;
type Shrink =
    unsafe extern "C" fn(Handle, *const c_int, c_int, *mut Handle, *const Config, c_int) -> u32;
type Grow =
    unsafe extern "C" fn(Handle, c_int, *const UniqueId, c_int, *mut Handle, *const Config) -> u32;
type IdOf = unsafe extern "C" fn(Handle, *mut UniqueId) -> u32;
type WithInfo = unsafe extern "C" fn(*const c_void) -> u32;
type OnHandle = unsafe extern "C" fn(Handle, c_int) -> u32;
type Question = unsafe extern "C" fn(Handle, *mut u32) -> u32;
type Bare = unsafe extern "C" fn() -> u32;
type Plan = unsafe extern "C" fn(u32, u64, Handle);
/// Nine words: as many arguments as any operation has, in registers and on the stack alike.
type Operation = unsafe extern "C" fn(
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
) -> u32;

/// Loads a library and gives its address.
fn open(path: &str) -> Result<usize, Refused> {
    let path = CString::new(path).map_err(|_| refused("a path with a zero byte"))?;
    // SAFETY: the path is a C string; what a library does when it is loaded is its own.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        Err(refused("cannot be loaded"))
    } else {
        Ok(library.expose_provenance())
    }
}

impl Rank {
    fn carry_out(&mut self, words: &[&str]) -> Result<String, Refused> {
        match *words {
            ["load", path] => self.load(path),
            ["load-aside", path] => self.load_aside(path),
            ["id"] => self.unique_id("ncclGetUniqueId"),
            ["own-id"] => self.unique_id("fakeNcclOwnId"),
            ["init", name, ranks, rank, id] => self.init(name, (ranks, rank, id), "rank"),
            ["init", name, ranks, rank, id, how] => self.init(name, (ranks, rank, id), how),
            ["config", ref what @ ..] => self.configure(what),
            ["all", name, ranks] => self.init_all(name, ranks),
            ["split", name, color, key, new] => self.split(name, (color, key), new),
            ["shrink", name, new, ref excluded @ ..] => self.shrink(name, new, excluded),
            ["grow-id", name] => self.grow_id(name),
            ["grow", name, new, ranks] => self.grow(name, new, (ranks, "-1"), None),
            ["join", new, ranks, rank, id] => {
                self.grow("-", new, (ranks, rank), Some(parse_id(id)?))
            }
            ["finalize", name] => self.end("ncclCommFinalize", name, false),
            ["revoke", name] => self.end("ncclCommRevoke", name, false),
            ["destroy", name] => self.end("ncclCommDestroy", name, true),
            ["abort", name] => self.end("ncclCommAbort", name, true),
            ["count", name] => self.ask("ncclCommCount", name),
            ["rank", name] => self.ask("ncclCommUserRank", name),
            ["error", name] => self.ask("ncclCommGetAsyncError", name),
            ["call", times, operation, name, count, datatype] => {
                self.call((times, operation), name, (count, datatype), LEAST)
            }
            ["pace", times, rate, operation, name, count, datatype] => {
                self.pace((times, rate), operation, name, (count, datatype))
            }
            ["storm", time, operation, name, count, datatype] => {
                self.storm(time, operation, name, (count, datatype))
            }
            ["wild", function, ref words @ ..] => self.wild(function, words),
            ["group", times, operation, name, count, datatype] => {
                self.group((times, operation), name, (count, datatype))
            }
            ["simulate", times, operation, name, count, datatype] => {
                self.simulate((times, operation), name, (count, datatype))
            }
            ["ras", file] => {
                crate::ras::listen(file.into()).map_err(|error| refused(error.to_string()))
            }
            ["wait", fifo] => self.wait_at(fifo),
            ["hang"] => self.plan(1, 0, "-"),
            ["fail", result] => self.plan(2, number(result)?, "-"),
            ["break", name, result] => self.plan(3, number(result)?, name),
            _ => Err(refused("no such order")),
        }
    }

    fn load(&mut self, path: &str) -> Result<String, Refused> {
        self.library = ptr::with_exposed_provenance_mut(open(path)?);
        Ok("ok".into())
    }

    fn load_aside(&mut self, path: &str) -> Result<String, Refused> {
        let opened = thread::scope(|scope| scope.spawn(|| open(path)).join());
        let opened = opened.map_err(|_| refused("the thread has panicked"))?;
        self.library = ptr::with_exposed_provenance_mut(opened?);
        Ok("ok".into())
    }

    fn symbol(&self, name: &str) -> Result<*mut c_void, Refused> {
        if self.library.is_null() {
            let found = self.linked.get(name).copied();
            return found.ok_or_else(|| refused("no library is loaded"));
        }
        let text = CString::new(name).map_err(|_| refused("a name with a zero byte"))?;
        // SAFETY: the library is loaded and the name is a C string.
        let found = unsafe { libc::dlsym(self.library, text.as_ptr()) };
        if found.is_null() { Err(refused(format!("the library has no {name}"))) } else { Ok(found) }
    }

    fn handle(&self, name: &str) -> Result<Handle, Refused> {
        if name == "-" {
            return Ok(ptr::null_mut());
        }
        if let Some(address) = name.strip_prefix('@') {
            return Ok(ptr::with_exposed_provenance_mut(word(address)?));
        }
        let found = self.communicators.get(name).copied();
        found.ok_or_else(|| refused(format!("no communicator {name}")))
    }

    fn unique_id(&self, function: &str) -> Result<String, Refused> {
        let function = self.symbol(function)?;
        let mut id = UniqueId([0; 128]);
        // SAFETY: the symbol has this type in every version; the id has room for the answer.
        let result = unsafe {
            transmute::<*mut c_void, unsafe extern "C" fn(*mut UniqueId) -> u32>(function)(
                &raw mut id,
            )
        };
        if result != 0 {
            return Err(refused(format!("result {result}")));
        }
        Ok(hex(&id))
    }

    fn init(
        &mut self,
        name: &str,
        (ranks, rank, id): (&str, &str, &str),
        how: &str,
    ) -> Result<String, Refused> {
        let (ranks, rank) = (int(ranks)?, int(rank)?);
        let id = parse_id(id)?;
        let mut new: Handle = ptr::null_mut();
        let to = &raw mut new;
        // SAFETY: the symbols have these types in every version that has them; pointers are to
        // locals that outlive the call.
        let result = unsafe {
            match how {
                "rank" => transmute::<*mut c_void, InitRank>(self.symbol("ncclCommInitRank")?)(
                    to, ranks, id, rank,
                ),
                "config" => transmute::<*mut c_void, InitConfig>(
                    self.symbol("ncclCommInitRankConfig")?,
                )(to, ranks, id, rank, self.config()),
                "scalable" => transmute::<*mut c_void, InitScalable>(
                    self.symbol("ncclCommInitRankScalable")?,
                )(to, ranks, rank, 1, &raw const id, self.config()),
                _ => return Err(refused("rank, config or scalable")),
            }
        };
        Ok(self.keep(name, new, result))
    }

    /// Null: the parent's, or the library's own.
    fn config(&self) -> *const Config {
        self.config.as_ref().map_or(ptr::null(), Configuration::as_ptr)
    }

    fn configure(&mut self, what: &[&str]) -> Result<String, Refused> {
        self.config = match *what {
            ["none"] => None,
            ["name", text] => Some(Configuration::named(bytes(text)?)),
            ["endless", text] => {
                let made = Configuration::endless(&bytes(text)?);
                Some(made.map_err(|error| refused(error.to_string()))?)
            }
            ["bad", size, magic, address] => {
                let magic =
                    u32::try_from(number(magic)?).map_err(|_| refused("a magic has 32 bits"))?;
                Some(Configuration::bad(word(size)?, magic, word(address)?))
            }
            _ => return Err(refused("none, name, endless or bad")),
        };
        Ok("ok".into())
    }

    fn init_all(&mut self, name: &str, ranks: &str) -> Result<String, Refused> {
        let count = word(ranks)?;
        let mut new: Vec<Handle> = vec![ptr::null_mut(); count];
        // SAFETY: the symbol has this type; there is room for `count` handles.
        let result = unsafe {
            transmute::<*mut c_void, InitAll>(self.symbol("ncclCommInitAll")?)(
                new.as_mut_ptr(),
                int(ranks)?,
                ptr::null(),
            )
        };
        for (rank, handle) in new.into_iter().enumerate() {
            self.keep(&format!("{name}{rank}"), handle, result);
        }
        Ok(result.to_string())
    }

    fn split(
        &mut self,
        name: &str,
        (color, key): (&str, &str),
        child: &str,
    ) -> Result<String, Refused> {
        let mut new: Handle = ptr::null_mut();
        let parent = self.handle(name)?;
        // SAFETY: the symbol has this type; the pointer is to a local that outlives the call.
        let result = unsafe {
            transmute::<*mut c_void, Split>(self.symbol("ncclCommSplit")?)(
                parent,
                int(color)?,
                int(key)?,
                &raw mut new,
                self.config(),
            )
        };
        Ok(self.keep(child, new, result))
    }

    fn shrink(&mut self, name: &str, child: &str, excluded: &[&str]) -> Result<String, Refused> {
        let excluded = excluded.iter().map(|rank| int(rank)).collect::<Result<Vec<_>, _>>()?;
        let count = c_int::try_from(excluded.len()).map_err(|_| refused("too many ranks"))?;
        let mut new: Handle = ptr::null_mut();
        let parent = self.handle(name)?;
        // SAFETY: the symbol has this type; pointers are to locals that outlive the call.
        let result = unsafe {
            transmute::<*mut c_void, Shrink>(self.symbol("ncclCommShrink")?)(
                parent,
                excluded.as_ptr(),
                count,
                &raw mut new,
                self.config(),
                0,
            )
        };
        Ok(self.keep(child, new, result))
    }

    fn grow_id(&self, name: &str) -> Result<String, Refused> {
        let (function, parent) = (self.symbol("ncclCommGetUniqueId")?, self.handle(name)?);
        let mut id = UniqueId([0; 128]);
        // SAFETY: the symbol has this type; the id has room for the answer.
        let result = unsafe { transmute::<*mut c_void, IdOf>(function)(parent, &raw mut id) };
        if result == 0 { Ok(hex(&id)) } else { Err(refused(format!("result {result}"))) }
    }

    fn grow(
        &mut self,
        name: &str,
        child: &str,
        (ranks, rank): (&str, &str),
        id: Option<UniqueId>,
    ) -> Result<String, Refused> {
        let (mut new, parent): (Handle, _) = (ptr::null_mut(), self.handle(name)?);
        // SAFETY: the symbol has this type; pointers are to locals that outlive the call.
        let result = unsafe {
            transmute::<*mut c_void, Grow>(self.symbol("ncclCommGrow")?)(
                parent,
                int(ranks)?,
                id.as_ref().map_or(ptr::null(), ptr::from_ref),
                int(rank)?,
                &raw mut new,
                self.config(),
            )
        };
        Ok(self.keep(child, new, result))
    }

    fn keep(&mut self, name: &str, handle: Handle, result: u32) -> String {
        if !handle.is_null() {
            self.communicators.insert(name.to_owned(), handle);
        }
        result.to_string()
    }

    fn end(&mut self, function: &str, name: &str, frees: bool) -> Result<String, Refused> {
        let (function, handle) = (self.symbol(function)?, self.handle(name)?);
        if frees {
            self.communicators.remove(name);
        }
        // SAFETY: the symbol takes a handle and at most one number more, which a function that
        // takes none does not look at.
        Ok(unsafe { transmute::<*mut c_void, OnHandle>(function)(handle, 0) }.to_string())
    }

    fn ask(&self, function: &str, name: &str) -> Result<String, Refused> {
        let (function, handle) = (self.symbol(function)?, self.handle(name)?);
        let mut answer = 0;
        // SAFETY: the symbol has this type; the answer is a local that outlives the call.
        let result =
            unsafe { transmute::<*mut c_void, Question>(function)(handle, &raw mut answer) };
        Ok(format!("{result} {answer}"))
    }

    fn wait_at(&self, fifo: &str) -> Result<String, Refused> {
        let path = CString::new(fifo).map_err(|_| refused("a path with a zero byte"))?;
        self.plan(0, path.as_ptr().expose_provenance() as u64, "-")
    }

    fn plan(&self, what: u32, value: u64, name: &str) -> Result<String, Refused> {
        let (function, handle) = (self.symbol("fakeNcclPlan")?, self.handle(name)?);
        // SAFETY: the fake's own function.
        unsafe { transmute::<*mut c_void, Plan>(function)(what, value, handle) };
        Ok("ok".into())
    }

    fn call(
        &self,
        (times, operation): (&str, &str),
        name: &str,
        (count, datatype): (&str, &str),
        gap: Duration,
    ) -> Result<String, Refused> {
        let (function, handle) = (self.symbol(operation)?, self.handle(name)?);
        // SAFETY: every operation takes at most eleven words.
        let function = unsafe { transmute::<*mut c_void, Operation>(function) };
        let words = arguments(operation, word(count)?, word(datatype)?, handle)
            .ok_or_else(|| refused("no such operation"))?;
        let [r0, r1, r2, r3, r4, r5, s0, s1, s2, s3, s4] = words;
        let mut result = 0;
        for _ in 0..number(times)? {
            // SAFETY: the arguments are in the places that `nccl.h` gives them; the buffers are
            // not touched on a host without devices.
            result = unsafe { function(r0, r1, r2, r3, r4, r5, s0, s1, s2, s3, s4) };
            let returned = Instant::now();
            while returned.elapsed() < gap {}
        }
        Ok(result.to_string())
    }

    /// What no sane program does. The process may not live.
    fn wild(&self, function: &str, words: &[&str]) -> Result<String, Refused> {
        let mut all = [0; 11];
        for (to, from) in all.iter_mut().zip(words) {
            *to = word(from)?;
        }
        let [r0, r1, r2, r3, r4, r5, s0, s1, s2, s3, s4] = all;
        // SAFETY: none: that is what it is for. No function takes more than eleven words.
        let result = unsafe {
            let function = transmute::<*mut c_void, Operation>(self.symbol(function)?);
            function(r0, r1, r2, r3, r4, r5, s0, s1, s2, s3, s4)
        };
        Ok(result.to_string())
    }

    /// Calls without a pause for so long.
    fn storm(
        &self,
        time: &str,
        operation: &str,
        name: &str,
        (count, datatype): (&str, &str),
    ) -> Result<String, Refused> {
        let end = Instant::now() + Duration::from_millis(number(time)?);
        let (begun, mut calls) = (thread_cpu(), 0);
        while Instant::now() < end {
            self.call(("1000", operation), name, (count, datatype), Duration::ZERO)?;
            calls += 1_000;
        }
        Ok(format!("{calls} {}", (thread_cpu() - begun) / u128::from(calls.max(1_u64))))
    }

    /// Calls at a rate (0: without a pause) with other work on other memory in between, as a
    /// program has it.
    fn pace(
        &self,
        (times, rate): (&str, &str),
        operation: &str,
        name: &str,
        (count, datatype): (&str, &str),
    ) -> Result<String, Refused> {
        let (function, handle) = (self.symbol(operation)?, self.handle(name)?);
        // SAFETY: every operation takes at most eleven words.
        let function = unsafe { transmute::<*mut c_void, Operation>(function) };
        let words = arguments(operation, word(count)?, word(datatype)?, handle)
            .ok_or_else(|| refused("no such operation"))?;
        let [r0, r1, r2, r3, r4, r5, s0, s1, s2, s3, s4] = words;
        let pause = Duration::from_secs(1).checked_div(int(rate)?.unsigned_abs());
        let mut work = vec![0_u64; OTHER_WORK];
        let mut took = Vec::with_capacity(word(times)?);
        let mut next = Instant::now();
        for _ in 0..number(times)? {
            if let Some(pause) = pause {
                work.iter_mut().step_by(8).for_each(|word| *word = word.wrapping_add(1));
                std::hint::black_box(&mut work);
                next += pause;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            let begun = Instant::now();
            // SAFETY: as in `call`.
            unsafe { function(r0, r1, r2, r3, r4, r5, s0, s1, s2, s3, s4) };
            took.push(begun.elapsed().as_nanos());
        }
        took.sort_unstable();
        // The slowest were interrupted.
        took.truncate((took.len() * 99 / 100).max(1));
        let median = took.get(took.len() * 50 / 99).copied().unwrap_or(0);
        let mean = took.iter().sum::<u128>() / (took.len() as u128).max(1);
        Ok(format!("{median} {mean}"))
    }

    fn group(
        &self,
        calls: (&str, &str),
        name: &str,
        size: (&str, &str),
    ) -> Result<String, Refused> {
        let end = self.symbol("ncclGroupEnd")?;
        // SAFETY: the symbol takes nothing.
        self.in_group(calls, name, size, || unsafe { transmute::<*mut c_void, Bare>(end)() })
    }

    fn simulate(
        &self,
        calls: (&str, &str),
        name: &str,
        size: (&str, &str),
    ) -> Result<String, Refused> {
        let end = self.symbol("ncclGroupSimulateEnd")?;
        self.in_group(calls, name, size, || {
            // SAFETY: the symbol takes where the answer goes, or null.
            unsafe { transmute::<*mut c_void, WithInfo>(end)(ptr::null()) }
        })
    }

    /// Calls in a group that is ended so.
    fn in_group(
        &self,
        calls: (&str, &str),
        name: &str,
        size: (&str, &str),
        end: impl FnOnce() -> u32,
    ) -> Result<String, Refused> {
        let begin = self.symbol("ncclGroupStart")?;
        // SAFETY: the symbol takes nothing.
        unsafe { transmute::<*mut c_void, Bare>(begin)() };
        self.call(calls, name, size, LEAST)?;
        Ok(end().to_string())
    }
}

/// The words of a call, each in its place; a configuration comes last.
fn arguments(operation: &str, count: usize, datatype: usize, comm: Handle) -> Option<[usize; 11]> {
    const BUFFER: usize = 0x7f00_0000_0000;
    let comm = comm.expose_provenance();
    let words: &[usize] = match operation {
        "ncclAllReduce"
        | "ncclReduceScatter"
        | "ncclBroadcast"
        | "ncclGather"
        | "ncclScatter"
        | "ncclAllReduceConfig"
        | "ncclReduceScatterConfig"
        | "ncclBroadcastConfig"
        | "ncclGatherConfig"
        | "ncclScatterConfig" => &[BUFFER, BUFFER, count, datatype, 0, comm, 0x77],
        "ncclAllGather" | "ncclAlltoAll" | "ncclAllGatherConfig" | "ncclAlltoAllConfig" => {
            &[BUFFER, BUFFER, count, datatype, comm, 0x77]
        }
        "ncclReduce" | "ncclReduceConfig" => &[BUFFER, BUFFER, count, datatype, 0, 0, comm, 0x77],
        "ncclBcast" | "ncclSend" | "ncclRecv" => &[BUFFER, count, datatype, 0, comm, 0x77],
        "ncclPutSignal" => &[BUFFER, count, datatype, 0, 0, 0, 0, 0, 0, comm, 0x77],
        "ncclSignal" => &[0, 0, 0, 0, comm, 0x77],
        "ncclWaitSignal" => &[0, 0, comm, 0x77],
        _ => return None,
    };
    let mut all = [0; 11];
    all.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
    Some(all)
}

/// CPU nanoseconds of this thread so far.
fn thread_cpu() -> u128 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the record is a local that outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    u128::from(now.tv_sec.unsigned_abs()) * 1_000_000_000 + u128::from(now.tv_nsec.unsigned_abs())
}

fn hex(id: &UniqueId) -> String {
    let digit = |half: u8| char::from_digit(half.into(), 16);
    let halves = id.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    halves.filter_map(digit).collect()
}

fn parse_id(hex: &str) -> Result<UniqueId, Refused> {
    let mut id = [0; 128];
    if hex.len() != 256 {
        return Err(refused("an id has 256 digits"));
    }
    for (at, byte) in id.iter_mut().enumerate() {
        let digits = hex.get(2 * at..2 * at + 2).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).map_err(|_| refused("an id is hex"))?;
    }
    Ok(UniqueId(id))
}

/// From hex; `-` is none.
fn bytes(hex: &str) -> Result<Vec<u8>, Refused> {
    let digits = hex.trim_start_matches('-').as_bytes();
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok().filter(|_| pair.len() == 2)
    };
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    bytes.ok_or_else(|| refused("a text is hex"))
}

/// Decimal, or hex after `0x`.
fn number(text: &str) -> Result<u64, Refused> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| refused(format!("{text} is no number")))
}

fn word(text: &str) -> Result<usize, Refused> {
    usize::try_from(number(text)?).map_err(|_| refused(format!("{text} is too large")))
}

fn int(text: &str) -> Result<c_int, Refused> {
    text.parse().map_err(|_| refused(format!("{text} is no number")))
}

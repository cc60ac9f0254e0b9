//! What the agent's probes are measured against.

use aya::maps::{MapData, RingBuf};
use aya::programs::UProbe;
use aya::programs::uprobe::UProbeScope;
use aya::{Ebpf, EbpfLoader};
use aya_obj::Object;
use gpuwho_sys::uprobes::{Kind, Place, attach as attach_to, load as load_as};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use gpuwho_bpf::objects::PER_CALL as OBJECT;

/// Programs that do nothing.
pub(crate) struct Nothing {
    _programs: Ebpf,
}

impl Nothing {
    pub(crate) fn on(library: &Path, and_return: bool) -> io::Result<Self> {
        let mut bpf = load()?;
        let programs: &[&str] =
            if and_return { &["nothing", "nothing_returned"] } else { &["nothing"] };
        programs.iter().try_for_each(|program| attach(&mut bpf, program, library))?;
        Ok(Self { _programs: bpf })
    }
}

/// A program that does nothing, at entry and return of one session, as the agent's own is.
pub(crate) struct NothingThrough {
    _link: OwnedFd,
}

impl NothingThrough {
    pub(crate) fn on(library: &Path) -> io::Result<Self> {
        let object = Object::parse(OBJECT).map_err(io::Error::other)?;
        let missing = || io::Error::other("no such program");
        let name = "nothing_through";
        let program = object.programs.get(name).ok_or_else(missing)?;
        let code = object.functions.get(&program.function_key()).ok_or_else(missing)?;
        let program = load_as(name, &code.instructions, &program.license, Kind::Session)
            .map_err(|(error, _)| error)?;
        let offset = gpuwho_nccl::probe::place_of(&File::open(library)?, "AllReduce")?;
        let library = CString::new(library.as_os_str().as_bytes())?;
        let places = [Place { offset, cookie: 0 }];
        let link = attach_to(program.as_fd(), Kind::Session, false, &library, &places)?;
        Ok(Self { _link: link })
    }
}

/// A record a call, and the thread that takes it.
pub(crate) struct Ring {
    _programs: Ebpf,
    spent: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Ring {
    pub(crate) fn on(library: &Path) -> io::Result<Self> {
        let mut bpf = load()?;
        let ring = bpf.take_map("RECORDS").ok_or_else(|| io::Error::other("no ring"))?;
        let ring = RingBuf::try_from(ring).map_err(io::Error::other)?;
        ["begins", "ends"].iter().try_for_each(|program| attach(&mut bpf, program, library))?;
        let (spent, ends) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (to, until) = (Arc::clone(&spent), Arc::clone(&ends));
        let reader = Some(thread::spawn(move || read(ring, &to, &until)));
        Ok(Self { _programs: bpf, spent, ends, reader })
    }

    /// CPU nanoseconds of the reader so far.
    pub(crate) fn spent(&self) -> f64 {
        self.spent.load(Ordering::Relaxed) as f64
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// The words of a record, as the program wrote them.
struct Record([u64; 8]);

impl Record {
    fn of(bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        Self(std::array::from_fn(|at| u64::from_ne_bytes(words[at])))
    }

    /// By thread and communicator.
    fn key(&self) -> (u64, u64) {
        (self.0[2], self.0[5])
    }
}

/// Takes records and adds them up until it is told to end: the least that any reader does.
fn read(mut ring: RingBuf<MapData>, spent: &AtomicU64, ends: &AtomicBool) {
    let mut calls: HashMap<(u64, u64), (u64, u64)> = HashMap::new();
    while !ends.load(Ordering::Relaxed) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut waits = [PollFd::new(&ring, PollFlags::IN)];
        poll(&mut waits, Some(&timeout)).unwrap();
        while let Some(bytes) = ring.next() {
            let record = Record::of(&bytes);
            let (count, ns) = calls.entry(record.key()).or_default();
            *count += 1;
            *ns += record.0[1];
        }
        spent.store(thread_cpu(), Ordering::Relaxed);
    }
}

/// CPU nanoseconds of this thread.
pub(crate) fn thread_cpu() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// CPU nanoseconds of this process.
pub(crate) fn process_cpu() -> u64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn load() -> io::Result<Ebpf> {
    if OBJECT.is_empty() {
        return Err(io::Error::other("built without BPF programs"));
    }
    EbpfLoader::new().btf(None).load(OBJECT).map_err(io::Error::other)
}

/// At `ncclAllReduce`.
fn attach(bpf: &mut Ebpf, program: &str, library: &Path) -> io::Result<()> {
    let offset = gpuwho_nccl::probe::place_of(&File::open(library)?, "AllReduce")?;
    let missing = || io::Error::other("no such program");
    let program: &mut UProbe =
        bpf.program_mut(program).ok_or_else(missing)?.try_into().map_err(io::Error::other)?;
    program.load().map_err(io::Error::other)?;
    program.attach(offset, library, UProbeScope::AllProcesses).map_err(io::Error::other)?;
    Ok(())
}

//! A library that is loaded by a process which has held its device for hours: found when it is
//! loaded, by the word of the dynamic linker.

use super::super::hooks::Hooks;
use super::super::looks::Looks;
use super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashSet;
use std::slice;

const HOURS: Duration = Duration::from_hours(3);

/// Looks at some processes and hooks, hours after the first look: no look is due for long.
struct Later {
    looks: Looks,
    hooks: Hooks,
    now: Instant,
}

/// One that has nothing more to load by itself.
fn idle() -> Rank {
    settled(Rank::idle())
}

fn settled(mut rank: Rank) -> Rank {
    assert_eq!(rank.order("load libc.so.6"), "ok");
    rank
}

/// Until there is nothing left to do; nobody is taken to be stuck.
fn work(hooks: &mut Hooks) {
    while hooks.due().is_some() {
        hooks.work(|| Some(Vec::new()), &Paths::default());
    }
}

impl Later {
    /// `None` where this machine takes no probes.
    fn of(ranks: &[Rank]) -> Option<Self> {
        let processes: Vec<ProcKey> = ranks.iter().map(Rank::process).collect();
        let all: HashSet<ProcKey> = processes.iter().copied().collect();
        let (paths, began) = (Paths::default(), Instant::now());
        let candidates = Box::new(move || processes.clone());
        let mut looks = Looks::new(paths.clone(), candidates, began);
        looks.look(began);
        assert_eq!(looks.settled(began), Some(HashSet::new()), "too new");
        let now = began + HOURS;
        looks.look(now);
        let (settled, mut hooks) = (looks.settled(now), Hooks::new(true));
        assert_eq!(settled, Some(all.clone()));
        hooks.follow(settled);
        work(&mut hooks);
        if hooks.fd().is_none() {
            println!("skipped: needs root and BPF");
            return None;
        }
        assert_eq!(hooks.hooked(), all.len().min(64));
        Some(Self { looks, hooks, now })
    }

    /// Who has loaded something or let it go, once somebody has; nobody in so short a time that
    /// nothing else would notice.
    fn changed(&mut self) -> Vec<ProcKey> {
        let fd = self.hooks.fd().unwrap();
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap();
        self.hooks.changed()
    }

    /// Whether a look at the word of a process's dynamic linker finds a library.
    fn finds(&mut self, process: ProcKey) -> bool {
        assert_eq!(self.changed(), vec![process]);
        self.looks.told(process, self.now);
        let due = self.looks.due().unwrap();
        assert!(due <= self.now + Duration::from_millis(5), "{:?}", due - self.now);
        self.now = due;
        self.looks.look(due);
        self.looks.libraries.users().contains(&process)
    }

    /// Hooks those that are settled by now; gives how many there are.
    fn hooked(&mut self) -> usize {
        let settled = self.looks.settled(self.now);
        self.hooks.follow(settled);
        work(&mut self.hooks);
        self.hooks.hooked()
    }
}

/// The first byte of the hook in a process's memory and in its file.
fn first_byte(rank: &Rank) -> [u8; 2] {
    use std::os::unix::fs::FileExt as _;
    let folder = PathBuf::from(format!("/proc/{}", rank.child.id()));
    let (file, offset) = super::super::hooks::linker_of(&folder).unwrap();
    let range = file.file_name().unwrap().to_str().unwrap().to_owned();
    let maps = std::fs::read_to_string(folder.join("maps")).unwrap();
    let line = maps.lines().find(|line| line.starts_with(&range)).unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let begin = hex(range.split('-').next().unwrap());
    let from = hex(line.split(' ').nth(2).unwrap());
    let (mut in_memory, mut in_file) = ([0], [0]);
    let memory = File::open(folder.join("mem")).unwrap();
    memory.read_exact_at(&mut in_memory, begin + offset - from).unwrap();
    File::open(file).unwrap().read_exact_at(&mut in_file, offset).unwrap();
    [in_memory[0], in_file[0]]
}

fn is_hooked(rank: &Rank) -> bool {
    let [in_memory, in_file] = first_byte(rank);
    in_memory != in_file
}

#[test]
fn a_library_that_is_loaded_after_hours_is_found_at_the_word_of_the_dynamic_linker() {
    let scene = Scene::new();
    let mut rank = idle();
    let Some(mut later) = Later::of(slice::from_ref(&rank)) else { return };
    assert!(is_hooked(&rank));
    assert_eq!(rank.order(&format!("load {}", scene.library().display())), "ok");
    assert!(later.finds(rank.process()));
    // It has what it could be waited for, and pays no more.
    assert_eq!(later.hooked(), 0);
    assert!(!is_hooked(&rank));
}

#[test]
fn a_library_that_another_thread_loads_is_found() {
    let scene = Scene::new();
    let mut rank = idle();
    let Some(mut later) = Later::of(slice::from_ref(&rank)) else { return };
    assert_eq!(rank.order(&format!("load-aside {}", scene.library().display())), "ok");
    assert!(later.finds(rank.process()));
}

#[test]
fn a_process_that_was_not_asked_for_pays_nothing_though_it_maps_the_same_linker() {
    let scene = Scene::new();
    let (mut rank, mut other) = (idle(), idle());
    let Some(mut later) = Later::of(slice::from_ref(&rank)) else { return };
    assert_eq!(first_byte(&rank)[1], first_byte(&other)[1]);
    assert_eq!((is_hooked(&rank), is_hooked(&other)), (true, false));
    assert_eq!(other.order(&format!("load {}", scene.library().display())), "ok");
    let started_later = Rank::with(&scene.library());
    assert!(!is_hooked(&started_later));
    assert_eq!(later.hooks.runs(), [0, 0]);
    assert_eq!(rank.order(&format!("load {}", scene.library().display())), "ok");
    assert!(later.finds(rank.process()));
    // That it begins, and that it is done.
    assert_eq!(later.hooks.runs(), [2, 0]);
}

#[test]
fn many_words_of_one_linker_are_one_record_until_they_were_read() {
    let scene = Scene::new();
    let mut rank = idle();
    let Some(mut later) = Later::of(slice::from_ref(&rank)) else { return };
    for number in 0..20 {
        let copy = scene.folder.path().join(format!("lib{number}.so"));
        std::fs::copy(built("libnccl.so"), &copy).unwrap();
        assert_eq!(rank.order(&format!("load {}", copy.display())), "ok");
    }
    assert_eq!(later.changed(), vec![rank.process()]);
    assert_eq!((later.hooks.words(), later.hooks.runs()), (1, [40, 0]));
    assert_eq!(rank.order(&format!("load {}", scene.library().display())), "ok");
    assert_eq!(later.changed(), vec![rank.process()]);
    assert_eq!(later.hooks.words(), 2);
}

#[test]
fn a_hook_stays_with_a_process_that_becomes_another_program() {
    let scene = Scene::new();
    let mut command = Command::new("sh");
    command.args(["-c", "read go; exec \"$0\""]).arg(built("nccl-rank"));
    let mut rank = Rank::run(&mut command);
    let Some(mut later) = Later::of(slice::from_ref(&rank)) else { return };
    rank.begin("go");
    rank.begin(&format!("load {}", scene.library().display()));
    assert_eq!(rank.answer(), "ok");
    assert!(later.finds(rank.process()));
}

#[test]
fn the_linker_of_a_container_is_hooked_also_where_it_was_started_as_a_program() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    let own = std::fs::read_to_string("/proc/self/maps").unwrap();
    let own = own.lines().filter_map(|line| line.split_ascii_whitespace().nth(5));
    let linker = own.into_iter().find(|path| path.contains("/ld-")).unwrap();
    let script =
        "mount -t tmpfs none \"$0\" && cp \"$1\" \"$0/loader\" && exec \"$0/loader\" \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command.arg(folder.path()).arg(linker).arg(built("nccl-rank"));
    let mut rank = settled(Rank::run(&mut command));
    let Some(mut later) = Later::of(slice::from_ref(&rank)) else { return };
    assert!(!folder.path().join("loader").exists(), "seen outside its mounts");
    assert_eq!(rank.order(&format!("load {}", scene.library().display())), "ok");
    assert!(later.finds(rank.process()));
}

#[test]
fn hooks_are_let_go_with_their_processes_and_never_more_than_there_may_be() {
    let ranks: Vec<Rank> = (0..70).map(|_| idle()).collect();
    let Some(mut later) = Later::of(&ranks) else { return };
    assert_eq!(later.hooks.hooked(), 64);
    drop(ranks);
    later.now += HOURS;
    later.looks.look(later.now);
    assert_eq!(later.hooked(), 0);
}

#[test]
fn calls_of_a_library_that_is_loaded_late_are_counted_from_the_first_moment_on() {
    let Some(mut source) = Source::usual() else { return };
    let scenes = [Scene::new(), Scene::new(), Scene::new()];
    let mut ranks = [Rank::idle(), Rank::idle(), Rank::idle()];
    for rank in &ranks {
        source.hold(rank.process());
    }
    let known = |source: &Source| source.nccl.shared.with(|known| (known.hooked, known.words));
    for (at, scene) in scenes.iter().enumerate() {
        // Those before are let go, and what tried the price of a hit.
        source.until("hooked", |source| {
            let detaching = source.nccl.shared.with(|known| known.detaching);
            known(source).0 == 3 - at && detaching == 0
        });
        let (rank, (_, words)) = (&mut ranks[at], known(&source));
        assert_eq!(rank.order(&format!("load {}", scene.library().display())), "ok");
        let began = Instant::now();
        source.until("attached", |source| source.nccl.shared.with(|known| known.files) > at as u64);
        println!("attached {:?} after it was loaded", began.elapsed());
        assert!(known(&source).1 > words, "found without a word");
        let id = rank.order("id");
        assert_eq!(rank.order(&format!("init world 1 0 {id}")), "0");
        assert_eq!(rank.order("call 5 ncclAllReduce world 1000 7"), "0");
        let told = source.read();
        assert_eq!(told.int("nccl.collective.calls", rank, "all_reduce lt_4KiB"), Some(5));
    }
    source.until("let go", |source| known(source).0 == 0);
}

#[test]
fn nobody_is_hooked_while_a_process_may_be_stuck() {
    let rank = idle();
    let mut hooks = Hooks::new(true);
    let began = Instant::now();
    hooks.follow(Some(HashSet::from([rank.process()])));
    // Too many to look at.
    hooks.work(|| None, &Paths::default());
    hooks.work(|| panic!("asked again at once"), &Paths::default());
    assert_eq!((hooks.hooked(), hooks.fd().is_none()), (0, true));
    assert!(hooks.due().unwrap() >= began + Duration::from_secs(1));
}

#[test]
fn nobody_is_hooked_where_that_is_not_wanted() {
    let rank = idle();
    let mut hooks = Hooks::new(false);
    hooks.follow(Some(HashSet::from([rank.process()])));
    work(&mut hooks);
    assert_eq!((hooks.hooked(), hooks.fd().is_none()), (0, true));
    assert!(!is_hooked(&rank));
}

/// Carries out `load PATH`, as ranks do.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(void) {
    char order[4096];
    while (fgets(order, sizeof order, stdin)) {
        order[strcspn(order, "\n")] = 0;
        puts(dlopen(order + 5, RTLD_NOW) ? "ok" : "refused");
        fflush(stdout);
    }
}
"#;

/// Makes a file with the musl C library; `None` where that is not there.
fn with_musl(folder: &Path, source: &str, name: &str, how: &[&str]) -> Option<PathBuf> {
    let file = folder.join(name);
    let text = folder.join(format!("{name}.c"));
    std::fs::write(&text, source).unwrap();
    let made = Command::new("musl-gcc").args(how).arg("-o").arg(&file).arg(&text).status();
    let is_made = made.is_ok_and(|status| status.success());
    if !is_made {
        println!("skipped: needs musl-gcc (Debian's musl-tools)");
    }
    is_made.then_some(file)
}

#[test]
fn the_linker_of_musl_is_hooked_like_that_of_glibc() {
    let folder = tempfile::tempdir().unwrap();
    let make = |source, name, how: &[&str]| with_musl(folder.path(), source, name, how);
    let Some(program) = make(PROGRAM, "program", &[]) else { return };
    let source = "int ncclAllReduce(void) { return 0; }";
    let library = make(source, "libnccl.so", &["-shared", "-fPIC"]).unwrap();
    let other = make("int other;", "libother.so", &["-shared", "-fPIC"]).unwrap();
    let mut rank = Rank::run(&mut Command::new(program));
    assert_eq!(rank.order(&format!("load {}", other.display())), "ok");
    let Some(mut later) = Later::of(slice::from_ref(&rank)) else { return };
    assert_eq!(rank.order(&format!("load {}", library.display())), "ok");
    assert!(later.finds(rank.process()));
}

#[test]
fn a_program_that_was_linked_statically_has_nothing_to_hook() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = with_musl(folder.path(), PROGRAM, "static", &["-static"]) else { return };
    let mut rank = Rank::run(&mut Command::new(program));
    rank.begin("load /no/such/file");
    let mut answer = String::new();
    rank.answers.read_line(&mut answer).unwrap();
    let of = PathBuf::from(format!("/proc/{}", rank.child.id()));
    assert_eq!(super::super::hooks::linker_of(&of), None);
}

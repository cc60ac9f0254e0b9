use super::fixture::{attach_device_program, unified};
use super::*;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// `r0 = 0; exit`: forbids every device.
const DENY_ALL: [Instruction; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // The next run has another name.
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn make(name: &str) -> Option<Directory> {
    let path = unified()?.join(format!("gpuwho-test-{name}-{}", std::process::id()));
    std::fs::create_dir(&path).ok()?;
    Some(Directory(path))
}

fn programs(path: &Path) -> io::Result<Vec<AttachedProgram>> {
    device_programs(std::fs::File::open(path)?.as_fd())
}

#[test]
fn the_kernel_gives_back_the_program_that_was_attached_to_a_cgroup() {
    let Some(directory) = make("bpf") else {
        eprintln!("skipped: needs root and a writable cgroup2 mount");
        return;
    };
    let open = std::fs::File::open(&directory.0).unwrap();
    match attach_device_program(open.as_fd(), c"Slurm_Cgroup_v2", &DENY_ALL) {
        Ok(()) => {}
        Err(error) => {
            eprintln!("skipped: needs cgroup device programs: {error}");
            return;
        }
    }
    let expected =
        AttachedProgram { name: "Slurm_Cgroup_v2".to_owned(), instructions: DENY_ALL.to_vec() };
    assert_eq!(programs(&directory.0).unwrap(), [expected]);
}

#[test]
fn a_directory_that_is_no_cgroup_has_no_programs_to_give() {
    programs(Path::new("/")).unwrap_err();
}

#[test]
fn record_of_another_length_is_refused() {
    assert_eq!(record::<u32>(&7_u32.to_ne_bytes()), Some(7));
    assert_eq!(record::<u32>(&[0; 3]), None);
    assert_eq!(record::<u32>(&[0; 5]), None);
}

//! Describes the kernel state of a thread that is blocked in the driver.
//!
//! Three small reads of procfs a tick while a call hangs, otherwise none. The child is in the
//! agent's PID namespace, so its files are in the agent's own `/proc`.

use super::wire::Stuck;
use gpuwho_owners::host::boot_time_ns;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Stack frames that are reported: where the thread sleeps and its callers.
const FRAMES: usize = 3;

impl Stuck {
    /// The call, its duration and the thread's kernel state, as text.
    pub(super) fn describe(&self, child: u32) -> String {
        let lasts = boot_time_ns().saturating_sub(self.since_ns);
        // It is noticed within a second.
        let seconds = Duration::from_nanos(lasts).as_secs().max(1);
        let task = PathBuf::from(format!("/proc/{child}/task/{}", self.thread));
        let state = doing(&task).map_or_else(String::new, |doing| format!(": {doing}"));
        format!("{} has not returned for {seconds} s{state}", self.name)
    }
}

/// Formats `thread 71 is in uninterruptible sleep in nv_ioctl < do_vfs_ioctl`.
fn doing(task: &Path) -> Option<String> {
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    let thread = stat.split(' ').next()?;
    let state = match stat.rsplit_once(") ")?.1.chars().next()? {
        'D' => "in uninterruptible sleep",
        'R' => "running",
        'S' => "asleep",
        'T' | 't' => "stopped",
        _ => "ending",
    };
    let place = stack(task).or_else(|| wait_channel(task));
    let place = place.map_or_else(String::new, |place| format!(" in {place}"));
    Some(format!("thread {thread} is {state}{place}"))
}

/// The innermost functions of its kernel stack, which only root may read.
fn stack(task: &Path) -> Option<String> {
    let text = fs::read_to_string(task.join("stack")).ok()?;
    // A line is `[<0>] futex_wait+0x4c/0x80`, followed by the module in brackets.
    let function = |line: &str| {
        let (_, place) = line.split_once("] ")?;
        Some(place.split_once('+').map_or(place, |(name, _)| name).to_owned())
    };
    let frames: Vec<_> = text.lines().filter_map(function).take(FRAMES).collect();
    (!frames.is_empty()).then(|| frames.join(" < "))
}

fn wait_channel(task: &Path) -> Option<String> {
    let name = fs::read_to_string(task.join("wchan")).ok()?;
    Some(name).filter(|name| !name.is_empty() && name != "0")
}

#[cfg(test)]
mod tests {
    use super::doing;
    use std::fs;

    #[test]
    fn a_thread_in_the_driver_is_described_with_its_kernel_stack() {
        let task = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(task.path().join(name), text).unwrap();
        put("stat", "71 (reader:worker) D 1 71 71 0 -1 4194368");
        let reported = || doing(task.path());
        assert_eq!(reported().unwrap(), "thread 71 is in uninterruptible sleep");
        put("wchan", "rwsem_down_write_slowpath");
        let place = " in rwsem_down_write_slowpath";
        assert_eq!(reported().unwrap(), format!("thread 71 is in uninterruptible sleep{place}"));
        let stack = "[<0>] os_acquire_rwlock_write+0x35/0x50 [nvidia]\n[<0>] rmapi+0x1/0x2 [nvidia]\n\
                     [<0>] nvidia_ioctl+0x1/0x2 [nvidia]\n[<0>] __x64_sys_ioctl+0x92/0xd0\n";
        put("stack", stack);
        let place = " in os_acquire_rwlock_write < rmapi < nvidia_ioctl";
        assert_eq!(reported().unwrap(), format!("thread 71 is in uninterruptible sleep{place}"));
    }

    #[test]
    fn an_ended_thread_is_not_described() {
        assert_eq!(doing(&tempfile::tempdir().unwrap().path().join("71")), None);
    }
}

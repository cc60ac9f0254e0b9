//! Which cgroup hierarchies the host has, from `/proc/self/mountinfo`.

use std::path::{Path, PathBuf};

/// The mounted hierarchies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// Version 1, each mount point once.
    pub v1: Vec<PathBuf>,
    /// The unified hierarchy.
    pub v2: Option<PathBuf>,
}

/// How a host mounts its hierarchies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Version 1 only.
    V1,
    /// The unified hierarchy only.
    V2,
    /// Both.
    Hybrid,
}

/// The hierarchies a group is made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Every one, as a container runtime does.
    All,
    /// Those of version 1, as Slurm's v1 plugin does.
    V1,
    /// The unified one.
    V2,
}

impl Hierarchies {
    /// Reads a `mountinfo` file's text.
    pub fn parse(mountinfo: &str) -> Self {
        let mut found = Self::default();
        for (point, kind) in mountinfo.lines().filter_map(mount) {
            match kind {
                "cgroup" if !found.v1.iter().any(|known| known == point) => {
                    found.v1.push(point.to_owned());
                }
                "cgroup2" if found.v2.is_none() => found.v2 = Some(point.to_owned()),
                _ => {}
            }
        }
        found
    }

    /// How the host mounts them; `None` without any.
    pub fn layout(&self) -> Option<Layout> {
        match (self.v1.is_empty(), self.v2.is_some()) {
            (true, true) => Some(Layout::V2),
            (false, true) => Some(Layout::Hybrid),
            (false, false) => Some(Layout::V1),
            (true, false) => None,
        }
    }

    /// The mount points within a reach.
    pub fn within(&self, reach: Reach) -> impl Iterator<Item = &Path> {
        let v1 = (reach != Reach::V2).then_some(&self.v1).into_iter().flatten();
        let v2 = (reach != Reach::V1).then_some(&self.v2).into_iter().flatten();
        v1.chain(v2).map(PathBuf::as_path)
    }
}

/// A line's mount point and file system.
fn mount(line: &str) -> Option<(&Path, &str)> {
    let (left, right) = line.split_once(" - ")?;
    Some((Path::new(left.split(' ').nth(4)?), right.split(' ').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 24 0:28 / /sys/fs/cgroup/devices rw,relatime shared:10 - cgroup cgroup rw,devices
";
    const V2: &str = "40 24 0:30 / /sys/fs/cgroup/unified rw,relatime shared:11 - cgroup2 cg2 rw\n";

    #[test]
    fn a_layout_is_told_from_what_is_mounted() {
        let layout = |text: &str| Hierarchies::parse(text).layout();
        assert_eq!(layout(V1), Some(Layout::V1));
        assert_eq!(layout(V2), Some(Layout::V2));
        assert_eq!(layout(&[V1, V2].concat()), Some(Layout::Hybrid));
        assert_eq!(layout("22 1 0:5 / /proc rw - proc proc rw\n"), None);
    }

    #[test]
    fn a_reach_selects_hierarchies() {
        let both = Hierarchies::parse(&[V1, V2].concat());
        let points = |reach| both.within(reach).map(Path::to_owned).collect::<Vec<_>>();
        let v1 = ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/devices"].map(PathBuf::from);
        let v2 = [PathBuf::from("/sys/fs/cgroup/unified")];
        assert_eq!(points(Reach::V1), v1);
        assert_eq!(points(Reach::V2), v2);
        assert_eq!(points(Reach::All), [&v1[..], &v2[..]].concat());
    }
}

//! The cgroup path parser.

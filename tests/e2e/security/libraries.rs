//! Files that a process maps as a collective library.

//! Kernel log lines that a process writes through its own name, and who is affected by a fault.

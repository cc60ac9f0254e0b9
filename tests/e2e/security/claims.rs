//! Claims about others: forged owners, names that hide a process, and the control socket.

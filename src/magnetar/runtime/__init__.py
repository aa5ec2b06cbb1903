"""Files, sockets, threads and time: the I/O that implements the interfaces of the deterministic parts."""

"""What touches the world: files, sockets, threads, time; behind the interfaces of the deterministic parts."""

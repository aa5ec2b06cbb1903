"""The bytes that bookies receive, send and store, without I/O."""

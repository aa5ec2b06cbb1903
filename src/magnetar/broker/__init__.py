"""One broker of one cluster as a deterministic machine: events in, effects out. Each folder is one of its rooms."""

"""One link from a source cluster to a destination: exactly once and in order, whatever carries the entries."""

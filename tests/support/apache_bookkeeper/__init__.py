"""A real Apache BookKeeper as a peer for tests and benches."""

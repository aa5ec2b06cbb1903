"""A real Apache Pulsar as a peer for tests and benches."""

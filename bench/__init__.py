"""Benchmarks: generators, and the runners whose results are kept in `bench/results/`."""

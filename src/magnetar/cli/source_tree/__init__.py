"""Commands that run parts of the source tree that are not installed: benchmarks and the demo."""

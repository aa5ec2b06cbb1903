"""Commands that run what only the source tree has: benchmarks and the demo."""

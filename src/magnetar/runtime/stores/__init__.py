"""Implementations of the metadata store that do I/O."""

"""Implementations of the metadata store that touch the world."""

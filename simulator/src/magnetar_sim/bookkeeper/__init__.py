"""Worlds of ledgers: the real writer, readers and recoveries between bookies and a metadata store that fail in every way."""

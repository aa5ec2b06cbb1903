"""Pulsar's binary protocol without I/O: frames, commands, message metadata, batches, markers, connection states."""

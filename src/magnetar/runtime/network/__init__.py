"""Sockets: the Pulsar port, its connections, and the client of other clusters."""

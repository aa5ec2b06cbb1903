"""One client connection: which part of the broker answers each command of the Pulsar protocol."""

"""Idempotency keys: which keys a topic has seen, how they are found, stored and forgotten."""

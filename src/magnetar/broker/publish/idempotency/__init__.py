"""Idempotency keys: remembering, finding, storing and forgetting the keys of a topic."""

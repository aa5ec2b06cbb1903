"""Planned failover of a subscription: fenced here, finished, and continued in another cluster."""

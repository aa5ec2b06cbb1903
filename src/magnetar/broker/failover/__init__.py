"""Planned failover of a subscription: it is fenced here, its final state is written, and another cluster continues
it.
"""

"""Schemas of one cluster: what a definition means, which may follow which, and which version each one has.

Pure: no clock, no store, no connection. `broker.topics.schemas` keeps what is decided here.
"""

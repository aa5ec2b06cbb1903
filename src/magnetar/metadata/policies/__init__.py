"""Policies of namespaces and topics: one row of `table` each, with its type, checks and defaults."""

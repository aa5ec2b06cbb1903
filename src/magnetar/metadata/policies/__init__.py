"""Policies of namespaces and topics: each is one row of `table`, with its type, checks and default."""

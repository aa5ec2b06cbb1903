"""Metadata of tenants, namespaces, topics and cursors: the store, and the resources in it."""

"""Synchronisation of tenants, namespaces and policies with other clusters, over a topic; the rules: `magnetar.metadata.sync`."""

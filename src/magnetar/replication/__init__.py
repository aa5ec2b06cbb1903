"""Replication between clusters, as pure machines: links, acknowledged sets, subscription snapshots, failover, restore."""

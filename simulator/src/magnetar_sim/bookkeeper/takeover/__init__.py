"""Clusters whose brokers have no disk: models of BookKeeper and ZooKeeper, and brokers that take over from one another."""

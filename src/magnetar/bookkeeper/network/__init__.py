"""The outside world: connections to bookies, and ZooKeeper."""

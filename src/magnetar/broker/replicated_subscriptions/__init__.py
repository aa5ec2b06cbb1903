"""Replicated subscriptions of one broker: the host of the machines in `magnetar.replication`."""

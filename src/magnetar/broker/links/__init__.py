"""Links of one broker: which topics go to and come from which clusters. The protocol itself is in `magnetar.replication.link`."""

"""Geo-replication: what goes over a link, how far it got, and why nothing is lost, doubled or reordered on the way."""

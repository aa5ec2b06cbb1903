"""Stands in for the package of that name while the official suite runs: its containers are brokers of ours."""

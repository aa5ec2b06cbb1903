"""Magnetar: a geo-replicated, Pulsar-compatible message broker whose pipeline between clusters runs on Spark."""

__version__ = "0.1.0"

"""Magnetar: a geo-replicated, Pulsar-compatible message broker whose pipeline between clusters runs on Spark."""

from magnetar.runtime.interpreter import compiled

__version__ = "0.1.0"

FORM = compiled.install()
"""Whether compiled modules run. First of all, because it decides what every other import of the package finds."""

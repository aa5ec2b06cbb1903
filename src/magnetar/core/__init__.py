"""Identities, names, errors and configuration: what every other part of Magnetar speaks in."""

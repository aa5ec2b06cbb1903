"""Shared parts of all commands: options, targets, credentials, output."""

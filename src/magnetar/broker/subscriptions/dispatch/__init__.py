"""Dispatch: choosing the consumer of each message, with one module per subscription type."""

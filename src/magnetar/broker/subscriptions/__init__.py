"""Subscriptions: consumers, acknowledgements, durable cursors."""

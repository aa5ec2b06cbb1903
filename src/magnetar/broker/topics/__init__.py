"""Topics: how they come and go, their limits, their maintenance, and what is kept of deleted ones."""

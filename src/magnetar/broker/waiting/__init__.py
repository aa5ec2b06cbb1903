"""A broker that waits to take over: its record for the other brokers, and what it answers until it serves."""

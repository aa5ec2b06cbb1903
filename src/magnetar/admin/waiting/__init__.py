"""The ports of a broker that waits to take over: its REST (`site`), and the part that puts all of it together (`role`)."""

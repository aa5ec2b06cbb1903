"""What the world itself knows: what was published, which disk holds what, and what was acknowledged by whom."""

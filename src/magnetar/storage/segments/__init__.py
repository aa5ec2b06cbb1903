"""Indexes of segments: what they are, and the two ways to make them."""

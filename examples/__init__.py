"""Programs around the product; each runs in the source tree."""

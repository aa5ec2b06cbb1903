"""`/metrics`: families of metrics, the text format, and what the process uses of its machine."""

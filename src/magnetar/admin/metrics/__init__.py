"""`/metrics`: families of metrics, the text format, and the resource usage of the process."""

"""The log on the disk: threads that write, read, clean and recover it."""

"""One ledger: its metadata, and the machines that write, read and recover it."""

"""The log of a broker on Apache BookKeeper: a file system whose files are ledgers."""

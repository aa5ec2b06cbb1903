"""The rules of a log on Apache BookKeeper: which ledger holds which file, where a byte is, how long a broker may serve."""

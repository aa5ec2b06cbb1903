"""What several kinds of tests share: brokers as real processes, and waiting for events with a deadline."""

"""Publishing, from SEND to the receipt: producers, rates, deduplication by sequence id and by idempotency key."""

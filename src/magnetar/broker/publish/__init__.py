"""Publishing: from SEND to the receipt. Producers, rates, deduplication by sequence id and by idempotency key."""

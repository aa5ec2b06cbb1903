"""What a broker stands on in a world: files in memory that forget what was not durable."""

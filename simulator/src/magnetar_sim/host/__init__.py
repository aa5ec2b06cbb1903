"""What a broker stands on in a world: the driver that does what its machines ask for, and files in memory."""

"""A cluster of two brokers on a real Apache BookKeeper, linked with one of one broker, while everything is killed in turn."""

"""What administration asks of a broker: the interface that REST calls, and its implementation."""

"""The interface of a broker for administration, which REST calls, and its implementation."""

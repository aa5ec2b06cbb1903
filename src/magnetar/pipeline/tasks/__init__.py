"""The code of Spark's tasks: reading from sources, sending to destinations, and the connections for both."""

"""The demo: real flights through three clusters, while brokers and Spark are killed; it proves that none is lost.

`make demo` runs it, and `magnetar demo` in the source tree.
"""

"""Schemas of one cluster: their meaning, their compatibility, and their versions.

Pure: no clock, no store, no connection. `broker.topics.schemas` stores the results.
"""

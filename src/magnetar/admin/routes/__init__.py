"""The REST endpoints, one module a noun."""

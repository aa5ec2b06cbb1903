"""TLS contexts, keys and secrets, read from files and read again when they change."""

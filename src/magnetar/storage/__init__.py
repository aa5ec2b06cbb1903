"""The log and the cursors: formats, decisions, and the interfaces of what touches the disk."""

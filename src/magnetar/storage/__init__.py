"""The log and the cursors: formats and decisions, and the interfaces of the code that touches the disk."""

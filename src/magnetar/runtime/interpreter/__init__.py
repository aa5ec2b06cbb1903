"""Control of CPython: its garbage collector and global lock, for a broker that must not pause, and its compiled modules."""

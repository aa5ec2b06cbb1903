"""Control of CPython's garbage collector and global lock, for a broker that must not pause."""

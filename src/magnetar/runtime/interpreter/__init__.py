"""What CPython's garbage collector and global lock need of a broker that must not pause."""

"""Worlds of synchronised metadata: smaller ones, around the machine alone, with planted bugs of their own."""

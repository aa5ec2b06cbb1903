"""The existing topics: creating, changing, watching, maintaining and deleting them, with everything that depends on
them.
"""

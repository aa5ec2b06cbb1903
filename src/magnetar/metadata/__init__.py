"""What is kept about tenants, namespaces, topics and cursors: the store, and the resources over it."""

"""What is done to a world: what users and operators do, what goes wrong, and stories."""

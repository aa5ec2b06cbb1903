"""Reports of a broker about topics, subscriptions and links."""

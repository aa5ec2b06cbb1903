"""What a broker reports about topics, subscriptions and links."""

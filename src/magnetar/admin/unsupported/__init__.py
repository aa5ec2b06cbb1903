"""What Pulsar's REST has and this broker has not: 501 with a reason, and the answers for what is never set."""

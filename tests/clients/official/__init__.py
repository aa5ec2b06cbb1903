"""Other people's tests of Pulsar's clients, run against `magnetar broker`, given a checkout of theirs that is never committed."""

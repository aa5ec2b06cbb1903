"""Topics, producers, subscriptions, dispatch: one broker as a deterministic machine. Events in, effects out."""

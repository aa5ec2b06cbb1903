"""Which entries go to which consumer of a subscription, and when: one policy per subscription type."""

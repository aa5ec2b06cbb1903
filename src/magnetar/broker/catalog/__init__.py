"""Which topics exist: made, changed, watched, cleaned up and deleted, together with everything that hangs on them."""

"""Topics that store nothing: what is published goes to whoever can take it now, and is gone.

    SEND -> inspect -> each subscription: the consumer whose turn it is, if it can take it now -> MESSAGE; else dropped, counted
         -> receipt

They need no log, no cursors and no acknowledgements, so they share with persistent topics what is before the log (names,
schemas, producers and their access modes, permissions) and the choice of a consumer, and nothing behind it. Links do not
carry them.
"""

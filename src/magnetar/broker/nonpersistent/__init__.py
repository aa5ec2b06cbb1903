"""Topics that store nothing: a message is sent to the consumers that can receive it now, and is then gone.

    SEND -> inspect -> each subscription: the consumer whose turn it is, if it can receive now -> MESSAGE; else dropped, counted
         -> receipt

They need no log, no cursors and no acknowledgements. With persistent topics they share the steps before the log (names,
schemas, producers and their access modes, permissions) and the choice of a consumer, and nothing after it. Links do not
carry them.
"""

"""A client of Apache BookKeeper's ledgers. It imports nothing of Magnetar, so others can use it, too.

    ledgers/      a ledger's metadata and the machines that write, read and recover it
    protocol/     bytes: stored entries, digests, the protocols v2 and v3 of the bookies
    network/      the outside world: connections to bookies, ZooKeeper

Everything except `network` is deterministic: no clock, no randomness, no socket.
Source: Apache BookKeeper 4.17.3; `docs/design/bookkeeper.md` has the facts that this package relies on.
"""

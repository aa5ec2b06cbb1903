"""A client of Apache BookKeeper's ledgers. It imports nothing of Magnetar, so others can use it, too.

    ledgers/      a ledger's metadata and the machines that write, read and recover it
    protocol/     bytes: stored entries, digests, the protocols v2 and v3 of the bookies
    network/      the outside world: connections to bookies, ZooKeeper

The client is `network.client.BookKeeper`; it needs the extra `zookeeper`:

    from magnetar.bookkeeper.network.client import BookKeeper

    async with await BookKeeper.connect("127.0.0.1:2181") as client:
        ledger = await client.create(ensemble=3, ack_quorum=2)
        done = [ledger.append(b"entry %d" % number) for number in range(100)]  # ids are given at once, in this order
        await asyncio.gather(*done)  # two bookies have each of them on disk
        await ledger.close()

        reader = await client.open(ledger.id)  # `recover` takes a ledger over from a writer that may still write
        async for id_, payload, _ in reader.entries():
            ...

Everything except `network` is deterministic: no clock, no randomness, no socket.
Source: Apache BookKeeper 4.17.3; `docs/design/bookkeeper.md` has the facts that this package relies on.
"""

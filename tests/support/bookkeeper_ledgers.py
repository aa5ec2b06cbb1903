"""Ledgers that our client writes, for tests with real bookies."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from magnetar.bookkeeper.ledgers.metadata import BookieId
from magnetar.bookkeeper.network.client import BookKeeper
from magnetar.bookkeeper.network.connection import Connections
from magnetar.bookkeeper.network.writable import WritableLedger
from magnetar.bookkeeper.network.zookeeper import address_of
from magnetar.bookkeeper.protocol.messages import Code, EntryRead, ReadEntry
from tests.support.apache_bookkeeper.kit import PASSWORD, BookKeeperCluster

SIZES: Final = [0, 1, 1000, 70_000, 1 << 20, 3]
"""Of entries."""


def run(test: Callable[[], Awaitable[Any]]) -> None:
    """A test that awaits, with a deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(500):
            await test()

    asyncio.run(bounded())


def content(number: int, size: int) -> bytes:
    """Of an entry."""
    return bytes([number % 251]) * size


async def written(client: BookKeeper, sizes: list[int], **more: Any) -> WritableLedger:
    """A ledger with entries of these sizes, all confirmed."""
    ledger = await client.create(password=PASSWORD, **more)
    done = [ledger.append(content(number, size)) for number, size in enumerate(sizes)]
    assert await asyncio.gather(*done) == list(range(len(sizes)))
    return ledger


async def holds(bookie: str, ledger: int, entries: Iterable[int]) -> bool:
    """Whether a bookie itself has all these entries."""
    connections = Connections(asyncio.get_running_loop(), address_of)
    try:
        asked = [connections.ask(BookieId(bookie), ReadEntry(ledger, entry)) for entry in entries]
        answers = await asyncio.gather(*asked)
    finally:
        await connections.close()
    return all(isinstance(one, EntryRead) and one.code is Code.OK for one in answers)


def replicated(cluster: BookKeeperCluster, ledger: int) -> int:
    """How many entries of a ledger are confirmed, if those of its last segment are on all of its bookies; else 0."""
    count = 0

    async def look() -> None:
        nonlocal count
        async with await BookKeeper.connect(cluster.hosts) as client:
            opened = await client.open(ledger)
            segment = opened.metadata.segments[-1]
            entries = range(segment.first, opened.last_readable + 1)
            if all([await holds(bookie, ledger, entries) for bookie in segment.ensemble]):
                count = entries.stop

    run(look)
    return count


def busiest(cluster: BookKeeperCluster, ledgers: Iterable[int]) -> int:
    """The one of these ledgers that has the most entries."""
    found: dict[int, int] = {}

    async def look() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            for ledger in ledgers:
                found[ledger] = (await client.open(ledger)).last_readable

    run(look)
    return max(found, key=found.__getitem__)


def ensembles(cluster: BookKeeperCluster, ledgers: Iterable[int]) -> dict[int, list[set[str]]]:
    """The bookies of each segment of these ledgers, as ZooKeeper has them."""
    found: dict[int, list[set[str]]] = {}

    async def look() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            for ledger in ledgers:
                found[ledger] = [set(one.ensemble) for one in (await client.metadata(ledger)).segments]

    run(look)
    return found


def contents(cluster: BookKeeperCluster, ledger: int, count: int = -1) -> list[bytes]:
    """The entries that can be read of a closed ledger: the first ones, as many as asked for; -1: all."""
    found: list[bytes] = []

    async def read() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            opened = await client.open(ledger)
            assert opened.closed
            last = opened.last_readable if count < 0 else count - 1
            found.extend([payload async for _, payload, _ in opened.entries(0, last)])

    run(read)
    return found

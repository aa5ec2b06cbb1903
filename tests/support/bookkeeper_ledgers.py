"""Ledgers that our client writes, for tests with real bookies."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from magnetar.bookkeeper.network.client import BookKeeper
from magnetar.bookkeeper.network.writable import WritableLedger
from tests.support.apache_bookkeeper.kit import PASSWORD

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

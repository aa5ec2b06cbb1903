"""Real bookies that are killed, hang, refuse to write; clients that take a ledger over from a writer that goes on."""

import asyncio
import contextlib
import functools
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from magnetar.bookkeeper.ledgers.metadata import LedgerState
from magnetar.bookkeeper.network.client import BookKeeper, Limits
from magnetar.bookkeeper.network.connection import ConnectionLimits
from magnetar.bookkeeper.network.errors import (
    BookKeeperError,
    LedgerFenced,
    NotWritable,
    TooFewBookies,
    TooMuchUnconfirmed,
)
from magnetar.bookkeeper.network.writable import WritableLedger
from tests.support.apache_bookkeeper.kit import PASSWORD, BookieServer, BookKeeperCluster

SOAK_S = float(os.environ.get("MAGNETAR_BOOKKEEPER_SOAK_S", "20"))
"""Duration of the soak."""

SEED = int(os.environ.get("MAGNETAR_BOOKKEEPER_SOAK_SEED", "1"))
"""It decides what the soak does, though not when."""

ROUNDS = int(os.environ.get("MAGNETAR_BOOKKEEPER_TAKEOVERS", "20"))
"""Takeovers of a ledger whose writer goes on."""

pytestmark = pytest.mark.timeout(600 + 4 * SOAK_S)

QUICK = Limits(connections=ConnectionLimits(request_s=2.0, connect_s=2.0))
"""A hung bookie is given up early, so that the test is short."""


def run(test: Callable[[], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(500 + 3 * SOAK_S):
            await test()

    asyncio.run(bounded())


class Load:
    """A ledger that is written without an end, and what was confirmed of it."""

    def __init__(self, ledger: WritableLedger) -> None:
        self.ledger = ledger
        self.sent: list[bytes] = []
        self.confirmed: dict[int, bytes] = {}
        self.pause_s = 0.0
        self.error: BaseException | None = None
        self._last_at = time.monotonic()
        self._more = asyncio.Event()
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while True:
            for _ in range(20):
                try:
                    payload = b"%d %d " % (self.ledger.id, len(self.sent)) + bytes(len(self.sent) % 1500)
                    done = self.ledger.append(payload)
                except TooMuchUnconfirmed:
                    with contextlib.suppress(NotWritable):
                        await self.ledger.room()
                    continue
                except NotWritable as error:
                    # Where nothing was under way, no entry has failed with the error that ended the ledger.
                    self.error = self.error or error.__cause__ or error
                    self._more.set()
                    return
                self.sent.append(payload)
                done.add_done_callback(functools.partial(self._done, len(self.sent) - 1))
            await asyncio.sleep(0.005)

    def _done(self, number: int, done: "asyncio.Future[int]") -> None:
        if done.cancelled():
            return
        if done.exception() is not None:
            self.error = self.error or done.exception()
        else:
            assert done.result() == number
            self.confirmed[number] = self.sent[number]
            now = time.monotonic()
            self.pause_s = max(self.pause_s, now - self._last_at)
            self._last_at = now
        self._more.set()

    async def until(self, count: int) -> None:
        """Wait until so many entries are confirmed."""
        while len(self.confirmed) < count:
            assert self.error is None, self.error
            self._more.clear()
            await self._more.wait()

    async def further(self, count: int) -> None:
        """Wait until so many more entries are confirmed."""
        await self.until(len(self.confirmed) + count)

    async def failed(self) -> None:
        """Wait until the writer has been refused."""
        await self._task

    async def stop(self) -> None:
        """Write no more."""
        self._task.cancel()
        await asyncio.wait([self._task])


@contextlib.asynccontextmanager
async def load(client: BookKeeper, **more: Any) -> AsyncIterator[Load]:
    made = Load(await client.create(password=PASSWORD, **more))
    try:
        yield made
    finally:
        await made.stop()


async def check(client: BookKeeper, made: Load) -> None:
    """Every confirmed entry can be read with what was written; nothing else is there."""
    reader = await client.open(made.ledger.id)
    assert reader.closed
    found = {id_: payload async for id_, payload, _ in reader.entries()}
    lost = {id_ for id_, payload in made.confirmed.items() if found.get(id_) != payload}
    assert not lost
    assert all(payload == made.sent[id_] for id_, payload in found.items())
    assert reader.metadata.length == sum(map(len, found.values()))


def of(cluster: BookKeeperCluster, made: Load, index: int) -> BookieServer:
    """A bookie that the ledger is written to."""
    return cluster.bookie(made.ledger.metadata.segments[-1].ensemble[index])


def test_a_bookie_that_is_killed_under_load_is_replaced(
    cluster: BookKeeperCluster, record_property: Callable[[str, object], None]
) -> None:
    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            async with load(client) as made:
                await made.until(300)
                killed = of(cluster, made, 1)
                made.pause_s = 0.0
                killed.kill()
                await made.further(1000)
                record_property("longest pause in milliseconds", round(1000 * made.pause_s))
                assert killed.id not in made.ledger.metadata.segments[-1].ensemble
                assert len(made.ledger.metadata.segments) == 2
            closed = await made.ledger.close()
            assert set(made.confirmed) == set(range(len(made.sent)))
            assert closed.last_entry == len(made.sent) - 1
            await check(client, made)
        found = await asyncio.to_thread(lambda: cluster.java_reads({made.ledger.id: "CRC32C"}))
        assert found[made.ledger.id] == made.sent

    run(test)


def test_writing_continues_while_there_is_no_bookie_to_replace_a_dead_one(cluster: BookKeeperCluster) -> None:
    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            async with load(client, ensemble=4, write_quorum=4, ack_quorum=2) as made:
                await made.until(100)
                dead = of(cluster, made, 2)
                dead.kill()
                await made.further(500)
                assert len(made.ledger.metadata.segments) == 1
                while dead.id in client.bookies.writable:  # until ZooKeeper has noticed
                    await made.further(20)
                with pytest.raises(TooFewBookies):
                    await client.create(ensemble=4)
                await asyncio.to_thread(dead.start)
                await made.further(500)
            await made.ledger.close()
            await check(client, made)

    run(test)


def test_a_hung_bookie_does_not_stop_a_writer_and_is_replaced(cluster: BookKeeperCluster) -> None:
    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts, limits=QUICK) as client:
            async with load(client) as made:
                await made.until(300)
                hung = of(cluster, made, 0)
                hung.freeze(True)
                while hung.id in made.ledger.metadata.segments[-1].ensemble:
                    await made.further(50)
                await made.further(300)
                hung.freeze(False)
            await made.ledger.close()
            await check(client, made)

    run(test)


def test_a_ledger_is_recovered_while_one_of_its_bookies_hangs(cluster: BookKeeperCluster) -> None:
    async def test() -> None:
        async with (
            await BookKeeper.connect(cluster.hosts, limits=QUICK) as client,
            await BookKeeper.connect(cluster.hosts, limits=QUICK) as other,
        ):
            async with load(client) as made:
                await made.until(300)
                hung = of(cluster, made, 0)
                hung.freeze(True)
                await other.recover(made.ledger.id)
                await made.failed()
                hung.freeze(False)
            await check(other, made)

    run(test)


def test_a_bookie_that_becomes_read_only_is_replaced(cluster: BookKeeperCluster) -> None:
    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            async with load(client) as made:
                await made.until(100)
                bookie = of(cluster, made, 0)
                await asyncio.to_thread(bookie.read_only)
                while bookie.id in made.ledger.metadata.segments[-1].ensemble:
                    await made.further(20)
                while bookie.id not in client.bookies.read_only:
                    await made.further(20)
                # A ledger that is created while the client does not know it yet may still have that bookie.
                other = await client.create()
                assert bookie.id not in other.metadata.segments[-1].ensemble
                await other.close()
            await made.ledger.close()
            await check(client, made)

    run(test)


def test_a_killed_bookie_that_comes_back_serves_what_it_had(cluster: BookKeeperCluster) -> None:
    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts, limits=QUICK) as client:
            ledger = await client.create(ensemble=1)
            await asyncio.gather(*[ledger.append(b"entry %d" % number) for number in range(200)])
            await ledger.close()
            bookie = cluster.bookie(ledger.metadata.segments[0].ensemble[0])
            bookie.kill()
            await asyncio.to_thread(bookie.start)
            reader = await client.open(ledger.id)
            assert [payload async for _, payload, _ in reader.entries()] == [b"entry %d" % n for n in range(200)]

    run(test)


def test_takeovers_lose_nothing_and_the_former_writer_confirms_nothing(
    cluster: BookKeeperCluster, record_property: Callable[[str, object], None]
) -> None:
    async def test() -> None:
        chance = random.Random(SEED)
        confirmed = survived = 0
        async with await BookKeeper.connect(cluster.hosts) as writer, await BookKeeper.connect(cluster.hosts) as other:
            for _ in range(ROUNDS):
                async with load(writer, write_quorum=chance.choice((2, 3)), ack_quorum=2) as made:
                    await made.until(chance.randrange(1, 400))
                    # Now and then two take it over at once.
                    clients = (other,) if chance.random() < 0.7 else (other, writer)
                    readers = await asyncio.gather(*(client.recover(made.ledger.id) for client in clients))
                    last = readers[0].last_readable
                    assert {reader.last_readable for reader in readers} == {last}
                    assert max(made.confirmed, default=-1) <= last
                    await made.failed()
                    assert isinstance(made.error, LedgerFenced), made.error
                    assert max(made.confirmed, default=-1) <= last, "the former writer confirms nothing after that"
                with pytest.raises(LedgerFenced):
                    await made.ledger.close()
                await check(other, made)
                confirmed += len(made.confirmed)
                survived += last + 1
        record_property("entries confirmed", confirmed)
        record_property("entries that survived", survived)

    run(test)


def test_soak(cluster: BookKeeperCluster, record_property: Callable[[str, object], None]) -> None:
    """Writers, takeovers and readers while bookies are killed and started again, hang and go on."""
    chance = random.Random(SEED)
    counts = dict.fromkeys(("kills", "hangs", "ledgers", "takeovers", "closed", "unwritable"), 0)

    async def disturb(until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(chance.uniform(0.5, 2))
            bookie = chance.choice(cluster.bookies)
            if chance.random() < 0.7:
                counts["kills"] += 1
                bookie.kill()
                await asyncio.sleep(chance.uniform(0, 2))
                await asyncio.to_thread(bookie.start)
            else:
                counts["hangs"] += 1
                bookie.freeze(True)
                await asyncio.sleep(chance.uniform(0.5, 4))
                bookie.freeze(False)

    async def write(client: BookKeeper, other: BookKeeper, until: float, done: list[Load]) -> None:
        while time.monotonic() < until:
            try:
                made = Load(await client.create(password=PASSWORD))
            except TooFewBookies:
                await asyncio.sleep(0.2)
                continue
            counts["ledgers"] += 1
            done.append(made)
            await asyncio.sleep(chance.uniform(0.5, 3))
            if chance.random() < 0.6:
                counts["takeovers"] += 1
                await other.recover(made.ledger.id, patience_s=200)
                await made.failed()
                continue
            await made.stop()
            try:
                await made.ledger.close()
                counts["closed"] += 1
            except BookKeeperError:
                counts["unwritable"] += 1

    async def test() -> None:
        async with (
            await BookKeeper.connect(cluster.hosts, limits=QUICK) as client,
            await BookKeeper.connect(cluster.hosts, limits=QUICK) as other,
        ):
            until, done = time.monotonic() + SOAK_S, list[Load]()
            await asyncio.gather(disturb(until), *(write(client, other, until, done) for _ in range(3)))
            await asyncio.to_thread(cluster.heal)
            for made in done:
                if (await other.metadata(made.ledger.id)).state is not LedgerState.CLOSED:
                    await other.recover(made.ledger.id, patience_s=200)
                await check(other, made)
            record_property("counts", counts)
            record_property("entries confirmed", sum(len(made.confirmed) for made in done))
            assert counts["ledgers"]

    run(test)

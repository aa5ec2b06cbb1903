"""A ledger that is written in the event loop and on another thread: `WrittenLedger` over a client that notes what it gets."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from magnetar.runtime.bookkeeper.client_ledgers import WrittenLedger, _Loop


class Client:
    """`WritableLedger`: notes entries, and confirms each at once."""

    id = 1
    has_room = True

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.threads: set[threading.Thread] = set()

    def append(self, payload: bytes) -> "asyncio.Future[int]":
        self.threads.add(threading.current_thread())
        future = asyncio.get_running_loop().create_future()
        future.set_result(len(self.entries))
        self.entries.append(payload)
        return future

    async def room(self) -> None:
        return


@pytest.fixture
def loop() -> Iterator[_Loop]:
    loop = _Loop(None)
    yield loop
    loop.close()


def written(loop: _Loop) -> tuple[WrittenLedger, Client]:
    client = Client()
    return WrittenLedger(loop, cast("Any", None), cast("Any", client)), client


def test_entries_keep_their_order_wherever_they_are_submitted(loop: _Loop) -> None:
    """The log's thread submits while the loop is busy; the loop submits before it has learned of that."""
    ledger, client = written(loop)
    busy, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def in_the_loop() -> None:
        busy.set()
        assert go_on.wait(20)
        ledger.submit([b"later"])
        done.set()

    loop.here(in_the_loop)
    assert busy.wait(20)
    ledger.submit([b"first"])
    ledger.submit([b"two", b"entries"])
    go_on.set()
    assert done.wait(20)
    ledger.wait()
    assert client.entries == [b"first", b"two", b"entries", b"later"]
    assert len(client.threads) == 1


def test_an_entry_that_is_submitted_in_the_loop_is_sent_at_once(loop: _Loop) -> None:
    ledger, client = written(loop)

    async def submit() -> int:
        ledger.submit([b"entry"])
        return len(client.entries)

    assert loop.call(submit()) == 1

"""Connections to bookies: each request is answered or fails once; what bounds them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.bookkeeper.ledgers.metadata import BookieId
from magnetar.bookkeeper.network.connection import Address, ConnectionLimits, Connections, Security
from magnetar.bookkeeper.network.sasl import SaslLogin
from magnetar.bookkeeper.network.zookeeper import address_of
from magnetar.bookkeeper.protocol.messages import (
    AddEntry,
    Authenticate,
    Authenticated,
    BatchRead,
    Code,
    EntryAdded,
    EntryRead,
    ReadBatch,
    ReadEntry,
    Request,
    Response,
)
from tests.support.scripted_bookie import ScriptedBookie, plain

KEY = b"k" * 20
PATIENT = ConnectionLimits(request_s=300, connect_s=300)
"""Deadlines that no test reaches."""


class Noted:
    """An owner that notes what it was given."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Response]] = []
        self.failures: list[int] = []
        self.sessions: list[int] = []
        self._came = asyncio.Event()

    def answered(self, bookie: BookieId, number: int, response: Response, session: int) -> None:
        self.answers.append((number, response))
        self.sessions.append(session)
        self._came.set()

    def failed(self, bookie: BookieId, number: int) -> None:
        self.failures.append(number)
        self._came.set()

    async def all(self, count: int) -> None:
        """Wait until so many requests are answered or have failed."""
        async with asyncio.timeout(60):
            while len(self.answers) + len(self.failures) < count:
                self._came.clear()
                await self._came.wait()


def connections(
    limits: ConnectionLimits = PATIENT,
    security: Security | None = None,
    resolve: Callable[[BookieId], Address | None] = address_of,
) -> Connections:
    return Connections(asyncio.get_running_loop(), resolve, limits, security)


def add(entry: int, body: bytes = b"") -> AddEntry:
    """An add of ledger 7, with the ids that its body has to begin with."""
    return AddEntry(7, entry, KEY, (7).to_bytes(8, "big") + entry.to_bytes(8, "big") + body)


def silent(request: Request) -> Response | None:
    """Greets, and answers nothing else."""
    return plain(request) if isinstance(request, Authenticate) else None


def run(test: Callable[[], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await test()

    asyncio.run(bounded())


def test_adds_use_version_2_and_are_answered_in_any_order() -> None:
    async def test() -> None:
        async with ScriptedBookie(silent) as bookie:
            opened, owner = connections(), Noted()
            for entry in range(5):
                opened.send([bookie.id], entry, add(entry), owner)
            await bookie.until(lambda: len(bookie.adds()) == 5)
            bookie.answer_held(lambda requests: list(reversed(requests)))
            await owner.all(5)
            assert owner.answers == [(entry, EntryAdded(7, entry, Code.OK)) for entry in (4, 3, 2, 1, 0)]
            assert [version for version, request in bookie.requests if isinstance(request, AddEntry)] == [2] * 5
            assert bookie.connections == 1
            await opened.close()

    run(test)


def test_one_frame_goes_to_all_replicas() -> None:
    async def test() -> None:
        async with ScriptedBookie() as one, ScriptedBookie() as other:
            opened, owner = connections(), Noted()
            recovering = AddEntry(7, 1, KEY, add(1).body, recovery=True)
            for number, request in enumerate((add(0), recovering)):
                opened.send([one.id, other.id], number, request, owner)
            await owner.all(4)
            # Without the greetings, which are numbered for each connection.
            for version in (2, 3):
                frames = [
                    [
                        frame
                        for frame, (spoken, request) in zip(bookie.frames, bookie.requests, strict=True)
                        if spoken == version and isinstance(request, AddEntry)
                    ]
                    for bookie in (one, other)
                ]
                assert frames[0] == frames[1]
                assert len(frames[0]) == 1
            await opened.close()

    run(test)


def test_reads_and_adds_of_a_recovery_have_a_connection_of_their_own() -> None:
    async def test() -> None:
        async with ScriptedBookie(silent) as bookie:
            opened, owner = connections(), Noted()
            opened.send([bookie.id], 0, add(0), owner)
            opened.send([bookie.id], 1, AddEntry(7, 0, KEY, add(0).body, recovery=True), owner)
            opened.send([bookie.id], 2, ReadEntry(7, 3), owner)
            await bookie.until(lambda: len(bookie.requests) == 5)
            assert bookie.connections == 2
            bookie.answer_held()
            await owner.all(3)
            assert sorted(number for number, _ in owner.answers) == [0, 1, 2]
            assert len(set(owner.sessions)) == 2
            await opened.close()

    run(test)


def test_a_batch_is_matched_by_its_number() -> None:
    def answer(request: Request) -> Response | None:
        if isinstance(request, ReadBatch):
            return BatchRead(request.ledger, request.first, Code.OK, (b"one", b"two"))
        return plain(request)

    async def test() -> None:
        async with ScriptedBookie(answer) as bookie:
            opened, owner = connections(), Noted()
            opened.send([bookie.id], 5, ReadBatch(7, 3, 10, 1000), owner)
            await owner.all(1)
            assert owner.answers == [(5, BatchRead(7, 3, Code.OK, (b"one", b"two")))]
            await opened.close()

    run(test)


def test_an_entry_that_is_sent_twice_is_answered_twice() -> None:
    async def test() -> None:
        async with ScriptedBookie(silent) as bookie:
            opened, owner = connections(), Noted()
            for number in range(3):
                opened.send([bookie.id], number, add(0), owner)
            await bookie.until(lambda: len(bookie.adds()) == 3)
            bookie.answer_held()
            await owner.all(3)
            assert [number for number, _ in owner.answers] == [0, 1, 2]
            await opened.close()

    run(test)


def test_a_bookie_that_does_not_answer_in_time_fails_all_that_waits() -> None:
    async def test() -> None:
        async with ScriptedBookie(silent) as bookie:
            opened, owner = connections(ConnectionLimits(request_s=0.3, connect_s=60)), Noted()
            for entry in range(3):
                opened.send([bookie.id], entry, add(entry), owner)
            await owner.all(3)
            assert owner.failures == [0, 1, 2]
            assert "it has not answered in time" in opened.problem([bookie.id])
            await opened.close()

    run(test)


def test_a_long_poll_may_take_its_time() -> None:
    async def test() -> None:
        async with ScriptedBookie(silent) as bookie:
            opened, owner = connections(ConnectionLimits(request_s=0.3, connect_s=60)), Noted()
            poll = ReadEntry(7, -1, previous_lac=1, timeout_ms=600_000, piggyback=True)
            opened.send([bookie.id], 0, poll, owner)
            await bookie.until(lambda: len(bookie.requests) == 2)
            # The deadline of an add on the other connection passes; the poll still waits.
            opened.send([bookie.id], 1, add(0), owner)
            await owner.all(1)
            assert owner.failures == [1]
            bookie.answer_held()
            await owner.all(2)
            assert [number for number, _ in owner.answers] == [0]
            await opened.close()

    run(test)


def test_a_lost_connection_fails_what_waits_and_is_made_again() -> None:
    async def test() -> None:
        async with ScriptedBookie(silent) as bookie:
            opened, owner = connections(), Noted()
            for entry in range(3):
                opened.send([bookie.id], entry, add(entry), owner)
            await bookie.until(lambda: len(bookie.adds()) == 3)
            bookie.cut()
            await owner.all(3)
            assert owner.failures == [0, 1, 2]
            bookie.answer = plain
            for entry in (3, 4):
                opened.send([bookie.id], entry, add(entry), owner)
                await owner.all(entry + 1)
            assert [number for number, _ in owner.answers] == [3, 4]
            assert bookie.connections == 2
            assert len(set(owner.sessions)) == 1
            await opened.close()

    run(test)


def test_requests_fail_at_once_while_a_bookie_is_known_to_be_down() -> None:
    async def test() -> None:
        async with ScriptedBookie() as bookie:
            await bookie.stop()
            opened, owner = connections(ConnectionLimits(backoff_min_s=0.3, backoff_max_s=0.3)), Noted()
            opened.send([bookie.id], 0, add(0), owner)
            await owner.all(1)
            await bookie.listen()
            opened.send([bookie.id], 1, add(1), owner)
            assert owner.failures == [0], "never while the request is being sent"
            await owner.all(2)
            assert owner.failures == [0, 1]
            assert bookie.connections == 0
            number = 1
            while not owner.answers:
                number += 1
                opened.send([bookie.id], number, add(number), owner)
                await owner.all(number + 1)
            assert bookie.connections == 1
            assert opened.problem([bookie.id]) == ""
            await opened.close()

    run(test)


def test_a_bookie_that_accepts_a_connection_and_hangs_is_noticed() -> None:
    async def test() -> None:
        async with ScriptedBookie(lambda _: None) as bookie:
            opened, owner = connections(ConnectionLimits(request_s=60, connect_s=0.3)), Noted()
            opened.send([bookie.id], 0, add(0), owner)
            await owner.all(1)
            assert owner.failures == [0]
            assert "it does not answer within 0.3 s" in opened.problem([bookie.id])
            await opened.close()

    run(test)


def test_bookies_whose_addresses_are_not_known_fail() -> None:
    """Each of them is named."""

    async def test() -> None:
        opened, owner = connections(), Noted()
        bookies = [BookieId("rack-7"), BookieId("rack-8")]
        for number, bookie in enumerate(bookies):
            opened.send([bookie], number, add(number), owner)
        await owner.all(2)
        assert owner.failures == [0, 1]
        assert opened.problem([*bookies, BookieId("rack-9")]) == (
            "bookie rack-7: it is not registered in ZooKeeper, so its address is not known; "
            "bookie rack-8: it is not registered in ZooKeeper, so its address is not known"
        )
        assert opened.problem([BookieId("rack-7")]) == (
            "bookie rack-7: it is not registered in ZooKeeper, so its address is not known"
        )
        await opened.close()

    run(test)


def test_a_name_that_is_no_address_is_resolved() -> None:
    async def test() -> None:
        async with ScriptedBookie() as bookie:
            opened = connections(resolve=lambda name: ("127.0.0.1", bookie.port) if name == "rack-7" else None)
            owner = Noted()
            opened.send([BookieId("rack-7")], 0, add(0), owner)
            await owner.all(1)
            assert owner.answers == [(0, EntryAdded(7, 0, Code.OK))]
            await opened.close()

    run(test)


def test_what_a_bookie_has_not_answered_is_bounded() -> None:
    async def test() -> None:
        async with ScriptedBookie(silent) as bookie:
            opened, owner = connections(ConnectionLimits(request_s=300, connect_s=300, bytes_max=10_000)), Noted()
            assert opened.has_room([bookie.id])
            opened.send([bookie.id], 0, add(0, bytes(9_900)), owner)
            assert opened.has_room([bookie.id])
            opened.send([bookie.id], 1, add(1, bytes(100)), owner)
            assert not opened.has_room([bookie.id])
            waiting = asyncio.create_task(opened.room([bookie.id]))
            await bookie.until(lambda: len(bookie.adds()) == 2)
            assert not waiting.done()
            bookie.answer_held()
            await waiting
            assert opened.has_room([bookie.id])
            for entry in range(2, 4):
                opened.send([bookie.id], entry, add(entry, bytes(10_000)), owner)
            await owner.all(4)
            assert owner.failures == [2, 3], "more than twice the limit: it does not keep up"
            assert "has not answered requests" in opened.problem([bookie.id])
            await opened.close()

    run(test)


def test_large_and_small_frames_arrive_in_order() -> None:
    async def test() -> None:
        async with ScriptedBookie() as bookie:
            opened, owner = connections(), Noted()
            sizes = [10, 1 << 20, 20, 30, 70_000, 0] * 3
            for entry, size in enumerate(sizes):
                opened.send([bookie.id], entry, add(entry, bytes([entry]) * size), owner)
            await owner.all(len(sizes))
            assert [request.body for request in bookie.adds()] == [
                add(entry, bytes([entry]) * size).body for entry, size in enumerate(sizes)
            ]
            await opened.close()

    run(test)


def test_an_authentication_that_this_client_lacks_is_named() -> None:
    def answer(request: Request) -> Response | None:
        return Authenticated("", b"", Code.UNAUTHORISED) if isinstance(request, Authenticate) else plain(request)

    async def test() -> None:
        async with ScriptedBookie(answer) as bookie:
            opened, owner = connections(), Noted()
            opened.send([bookie.id], 0, add(0), owner)
            await owner.all(1)
            assert owner.failures == [0]
            assert "it wants an authentication, and this client has none" in opened.problem([bookie.id])
            assert not bookie.adds()
            await opened.close()

    run(test)


class Countdown:
    """An authentication of three messages."""

    plugin = "countdown"

    def first(self) -> bytes:
        return b"3"

    def next(self, payload: bytes) -> bytes | None:
        return None if payload == b"0" else payload


def test_an_authentication_comes_before_everything_else() -> None:
    def answer(request: Request) -> Response | None:
        if isinstance(request, Authenticate):
            return Authenticated(request.plugin, str(int(request.payload) - 1).encode())
        return plain(request)

    async def test() -> None:
        async with ScriptedBookie(answer) as bookie:
            opened, owner = connections(security=Security(authentication=Countdown)), Noted()
            opened.send([bookie.id], 0, add(0), owner)
            await owner.all(1)
            assert owner.answers == [(0, EntryAdded(7, 0, Code.OK))]
            assert [request for _, request in bookie.requests] == [
                *(Authenticate("countdown", payload) for payload in (b"3", b"2", b"1")),
                add(0),
            ]
            await opened.close()

    run(test)


def sasl(request: Request) -> Response | None:
    """A bookie that has challenged, and says nothing to a refused answer, as real ones."""
    match request:
        case Authenticate(payload=b""):
            return Authenticated("sasl", b'realm="bookkeeper",nonce="n",charset=utf-8,algorithm=md5-sess')
        case Authenticate():
            return None
        case _:
            return plain(request)


@pytest.mark.parametrize(
    ("answer", "connect_s", "words"),
    [
        # Enough for the first answer on a busy machine.
        (sasl, 2, "it refuses the user or the password: it does not answer the authentication sasl within 2 s"),
        (lambda request: Authenticated("sasl", b"", Code.UNAUTHORISED), 300, "it refuses the authentication sasl"),
        (
            lambda request: Authenticated("sasl", b"?"),
            300,
            "the authentication sasl fails: it sent what is not a message of",
        ),
        (
            lambda request: sasl(request) or Authenticated("sasl", b"rspauth=00"),
            300,
            "the authentication sasl fails: it does not know the password",
        ),
        (lambda request: None, 0.3, "it does not answer within 0.3 s"),
    ],
)
def test_a_user_that_a_bookie_refuses_is_one_line(
    answer: Callable[[Request], Response | None], connect_s: float, words: str
) -> None:
    async def test() -> None:
        async with ScriptedBookie(answer) as bookie:
            security = Security(authentication=lambda: SaslLogin("bookkeeper", "top secret"))
            opened, owner = connections(ConnectionLimits(request_s=300, connect_s=connect_s), security), Noted()
            opened.send([bookie.id], 0, add(0), owner)
            await owner.all(1)
            assert owner.failures == [0]
            assert words in opened.problem([bookie.id])
            assert not bookie.adds()
            assert not any(b"top secret" in frame for frame in bookie.frames)
            await opened.close()

    run(test)


def test_a_bookie_without_authentication_accepts_every_user() -> None:
    async def test() -> None:
        async with ScriptedBookie() as bookie:
            security = Security(authentication=lambda: SaslLogin("bookkeeper", "secret"))
            opened, owner = connections(security=security), Noted()
            opened.send([bookie.id], 0, add(0), owner)
            await owner.all(1)
            assert owner.answers == [(0, EntryAdded(7, 0, Code.OK))]
            await opened.close()

    run(test)


@pytest.mark.parametrize("content", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x04\x02\x63\x00\x00"])
def test_bytes_that_are_no_answer_end_the_connection(content: bytes) -> None:
    async def test() -> None:
        async with ScriptedBookie(silent) as bookie:
            opened, owner = connections(), Noted()
            opened.send([bookie.id], 0, add(0), owner)
            await bookie.until(lambda: bool(bookie.adds()))
            bookie.send(content)
            await owner.all(1)
            assert owner.failures == [0]
            assert "it breaks the protocol" in opened.problem([bookie.id])
            await opened.close()

    run(test)


def test_closing_fails_what_waits() -> None:
    async def test() -> None:
        async with ScriptedBookie(silent) as bookie:
            opened, owner = connections(), Noted()
            opened.send([bookie.id], 0, add(0), owner)
            await bookie.until(lambda: bool(bookie.adds()))
            opened.send([bookie.id], 1, ReadEntry(7, 0), owner)
            await opened.close()
            await owner.all(2)
            assert sorted(owner.failures) == [0, 1]

    run(test)


def test_an_answer_that_no_request_waits_for_is_ignored() -> None:
    async def test() -> None:
        async with ScriptedBookie(silent) as bookie:
            opened, owner = connections(), Noted()
            opened.send([bookie.id], 0, ReadEntry(7, 0), owner)
            await bookie.until(lambda: len(bookie.requests) == 2)
            bookie.answer_held(lambda requests: [*requests, *requests])
            await owner.all(1)
            opened.send([bookie.id], 1, ReadEntry(7, 1), owner)
            await bookie.until(lambda: len(bookie.requests) == 3)
            bookie.answer_held()
            await owner.all(2)
            assert owner.answers == [(number, EntryRead(0, 0, Code.NO_ENTRY, None, None)) for number in (0, 1)]
            await opened.close()

    run(test)

"""Whose turn it is: the log's reports between any two events, timers and answers a little at a time, sockets in between."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from magnetar.core.ids import NONE
from magnetar.effects.outbox import Close, Outbox, Read, Send, Sync, Timer, Write
from magnetar.runtime import driver as module
from magnetar.runtime.driver import Driver
from magnetar.storage.bookkeeper.lease import Lease


class World:
    """A driver whose broker, log and clock are the test's; what happened, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.outbox = Outbox(now_ms=0)
        self.now_ms = 0
        self.broken: Exception | None = None
        self.submitted: list[Any] = []
        self.at_hand: Callable[[list[Any]], list[Any] | None] = lambda _spans: None
        self.log: Any = SimpleNamespace(
            let_by=SimpleNamespace(steps=0, busy=False),
            submit=self.submitted.append,
            read=self.read,
            read_now=self.read_now,
        )
        self.broker: Any = SimpleNamespace(
            appended=lambda batch: self.done.append(f"appended {batch}"),
            append_failed=lambda batch, error: self.done.append(f"failed {batch}"),
            healed=lambda: self.done.append("healed"),
            log_of=lambda _topic: self,
        )
        clock: Any = SimpleNamespace(now_ms=lambda: self.now_ms, ahead_ms=0)
        store: Any = None
        self.lease = Lease.endless()
        self.driver = Driver(asyncio.get_running_loop(), self.broker, self.outbox, self.log, store, clock, self.lease)

    def cached(self, *_: Any) -> list[Any]:
        return []

    cached_bytes = 0

    def count_hits(self, *_: Any) -> None:
        """Nobody asks."""

    def count_reads(self, _spans: list[Any]) -> None:
        """Nobody asks."""

    def locations(self, *_: Any) -> list[Any]:
        return ["there"]

    def read_now(self, spans: list[Any]) -> list[Any] | None:
        return self.at_hand(spans)

    def read(self, locations: list[Any]) -> list[Any]:
        if self.broken is not None:
            raise self.broken
        return locations

    def event(self, name: str, then: Callable[[], None] = lambda: None) -> Callable[[], None]:
        def handle() -> None:
            self.done.append(name)
            then()

        return handle

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not check():  # noqa: ASYNC110 - turns of the loop are what is tested
                await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each timer or answer is a turn of its own, whatever it takes."""
    monkeypatch.setattr(module, "TURN_S", 0.0)
    monkeypatch.setattr(module, "LEAST_PART", 0.0)


def run(test: Callable[[World], Any]) -> World:
    async def main() -> World:
        world = World()
        await test(world)
        world.driver.shut_down()
        return world

    return uvloop.run(main())


def test_the_logs_report_passes_events_that_wait() -> None:
    async def test(world: World) -> None:
        def report() -> None:
            thread = threading.Thread(target=lambda: world.driver.appended(["x"]))  # type: ignore[list-item]
            thread.start()
            thread.join()

        def first() -> None:
            world.done.append("first")
            world.driver.run(world.event("second"))
            report()

        world.driver.run(first)
        world.driver.run(world.event("third"))
        await world.until(lambda: len(world.done) == 4)

    assert run(test).done == ["first", "appended ['x']", "second", "third"]


def test_reports_keep_their_order() -> None:
    async def test(world: World) -> None:
        world.driver.append_failed(["a"], "broken")  # type: ignore[list-item]
        world.driver.healed()
        world.driver.appended(["b"])  # type: ignore[list-item]
        await world.until(lambda: len(world.done) == 3)

    assert run(test).done == ["failed ['a']", "healed", "appended ['b']"]


def test_after_a_rest_the_logs_thread_is_not_let_by_for_a_single_event(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[list[str]] = []

    async def test(world: World) -> None:
        monkeypatch.setattr(world.driver._give_way, "look", lambda: looks.append(list(world.done)))
        monkeypatch.setattr(module, "REST_S", -1.0)  # each event is the first after a rest
        world.driver.run(world.event("alone"))
        world.driver.run(world.event("first", lambda: world.driver.run(world.event("second"))))
        monkeypatch.setattr(module, "REST_S", 3600.0)
        world.driver.run(world.event("busy"))

    run(test)
    assert looks == [["alone", "first", "second"], ["alone", "first", "second", "busy"]]


class Listener(asyncio.Protocol):
    """Tells when the event loop looked at its socket."""

    def __init__(self, done: list[str]) -> None:
        self.done = done

    def data_received(self, data: bytes) -> None:
        self.done.append("socket")


def test_sockets_are_looked_at_between_timers() -> None:
    """Five timers are due at once; while each is handled something comes by a socket."""
    here, there = socket.socketpair()

    async def test(world: World) -> None:
        await asyncio.get_running_loop().create_connection(lambda: Listener(world.done), sock=here)

        def due(_now_ms: int) -> None:
            world.done.append("timer")
            there.send(b"x")

        world.driver.run(lambda: [world.outbox.put(Timer(0, due)) for _ in range(5)] and None)
        await world.until(lambda: world.done.count("timer") == 5 and world.done[-1] == "socket")

    done = run(test).done
    last = len(done) - 1 - done[::-1].index("timer")
    assert done[:last].count("socket") >= 3, f"sockets waited for all timers: {done}"
    there.close()


def test_what_sockets_brought_counts_for_the_turn_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn after a long event is one event's: what came by a socket meanwhile waits for no more. One after a pause is whole."""
    clock_s = [1_000.0]
    monkeypatch.setattr(module, "TURN_S", 1.0)
    monkeypatch.setattr(module, "GAP_S", 5.0)
    monkeypatch.setattr(module, "LEAST_PART", 0.05)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock_s[0]))

    async def test(world: World) -> None:
        loop = asyncio.get_running_loop()

        def takes(seconds: float) -> None:
            clock_s[0] += seconds

        async def turn() -> int:
            before = len(world.done)
            for number in range(4):
                world.driver._background.append((world.event(str(number), lambda: takes(0.3)), ()))
            world.driver._wake()
            looked: asyncio.Future[int] = loop.create_future()
            loop.call_soon(lambda: looked.set_result(len(world.done) - before))
            count = await looked
            await world.until(lambda: not world.driver._background)
            return count

        world.driver.run(lambda: takes(0.9))
        assert await turn() == 1
        world.driver.run(lambda: takes(11.0))
        assert await turn() == 2, "what waits cannot follow"
        world.driver.run(lambda: takes(0.9))
        clock_s[0] += 6
        assert await turn() == 4

    run(test)


def test_receipts_are_written_in_front_of_what_else_there_is_to_do() -> None:
    """While a turn is due. What is too large for that goes the usual way, and so do receipts when nothing else waits."""
    sent: list[str] = []
    large = b"x" * module.RECEIPTS_BYTES_MAX

    async def test(world: World) -> None:
        peer: Any = SimpleNamespace(
            send=lambda buffers: sent.append(f"soon {[each[:7] for each in buffers]}"),
            send_now=lambda buffer: sent.append(f"now {buffer}"),
        )
        world.driver.attach(1, peer)
        world.broker.appended = lambda batch: world.outbox.put(Send(1, batch))
        world.driver.appended([b"receipt"])  # type: ignore[list-item]
        await world.until(lambda: len(sent) == 1)
        world.driver._background.append((world.event("a timer"), ()))
        world.driver._wake()
        world.driver.appended([b"another", b" one"])  # type: ignore[list-item]
        world.driver.run(lambda: world.outbox.put(Send(1, [b"message"])))
        world.driver._wake()
        world.driver.appended([b"head", large])  # type: ignore[list-item]
        await world.until(lambda: len(sent) == 4)

    run(test)
    assert sent == [
        "soon [b'receipt']",
        "now b'another one'",
        "soon [b'message']",
        "soon [b'head', b'xxxxxxx']",
    ]


def test_what_an_event_sends_over_a_connection_is_one_write() -> None:
    """In its order, and before the connection is closed; what others get does not matter."""
    sent: list[str] = []

    def peer(name: str) -> Any:
        return SimpleNamespace(
            send=lambda buffers: sent.append(f"{name}: {b' '.join(buffers).decode()}"),
            close=lambda reason: sent.append(f"{name} closed: {reason}"),
        )

    def answer(world: World) -> None:
        first = [b"one", b"two"]
        for effect in (
            Send(1, first), Send(2, [b"other"]), Write(NONE), Send(1, [b"three"]), Close(1, "over"), Send(2, [b"last"]),
            Send(3, [b"nowhere"]),
        ):  # fmt: skip
            world.outbox.put(effect)
        assert first == [b"one", b"two"], "the buffers are the sender's"

    async def test(world: World) -> None:
        world.driver.attach(1, peer("a"))
        world.driver.attach(2, peer("b"))
        world.driver.run(answer, world)
        assert world.submitted == [NONE]

    run(test)
    assert sent == ["a: one two three", "b: other", "a closed: over", "b: last"]


def test_light_ones_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_S", 1_000.0)

    async def test(world: World) -> None:
        for number in range(100):
            world.driver._background.append((world.event(str(number)), ()))
        world.driver._wake()
        asyncio.get_running_loop().call_soon(lambda: world.done.append("the next one"))
        await world.until(lambda: len(world.done) == 101)

    assert run(test).done == [*map(str, range(100)), "the next one"]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (None, ""),
        (OSError("the disk is gone"), "the disk is gone"),
        (ZeroDivisionError("a bug"), "unexpected ZeroDivisionError: a bug"),
    ],
)
def test_what_a_reader_found_is_answered(broken: Exception | None, says: str) -> None:
    """Whatever happens in its thread: who asked would wait for ever."""
    found: list[tuple[Any, str]] = []

    async def test(world: World) -> None:
        world.broken = broken
        asked = Read("t", NONE, 1, 1, lambda entries, error: found.append((entries, error)))
        world.driver.run(lambda: world.outbox.put(asked))
        await world.until(lambda: bool(found))

    run(test)
    assert found == [([] if broken else ["there"], says)]


def test_what_is_at_hand_is_read_by_nobody_else() -> None:
    """Nor within the event that asks: who asks need not expect the answer before it is done."""
    found: list[tuple[Any, str]] = []

    async def test(world: World) -> None:
        world.at_hand = lambda spans: [f"{each} at hand" for each in spans]
        world.broken = AssertionError("a reader's thread was asked")
        asked = Read("t", NONE, 1, 1, lambda entries, error: found.append((entries, error)))

        def ask() -> None:
            world.outbox.put(asked)
            world.driver.run(world.event("behind it"))

        world.driver.run(ask)
        assert not found
        await world.until(lambda: bool(found))
        assert world.done == ["behind it"]

    run(test)
    assert found == [(["there at hand"], "")]


def test_a_bug_in_reading_what_is_at_hand_leaves_it_to_a_reader() -> None:
    found: list[tuple[Any, str]] = []

    async def test(world: World) -> None:
        world.at_hand = lambda _spans: [1 // 0]
        world.driver.run(
            lambda: world.outbox.put(Read("t", NONE, 1, 1, lambda entries, error: found.append((entries, error))))
        )
        await world.until(lambda: bool(found))
        assert not world.driver.stopped.is_set()

    run(test)
    assert found == [(["there"], "")]


def test_reads_that_bring_the_next_ones_take_one_turn_between_two_looks() -> None:
    """A backlog: each answer asks for the next read. Were each to bring a turn of its own, they would pile up."""
    here, there = socket.socketpair()
    turns: list[int] = []

    async def test(world: World) -> None:
        await asyncio.get_running_loop().create_connection(lambda: Listener(world.done), sock=here)
        world.at_hand = list

        def answered(_entries: Any, _error: str) -> None:
            world.done.append("read")
            there.send(b"x")
            if world.done.count("read") < 60:
                ask()

        def ask() -> None:
            for _ in range(1 + (world.done.count("read") < 8)):
                world.outbox.put(Read("t", NONE, 1, 1, answered))

        world.driver.run(ask)
        await world.until(lambda: world.done.count("read") >= 60 and world.done[-1] == "socket")
        together = 0
        for each in world.done:
            together = together + 1 if each == "read" else 0
            turns.append(together)

    run(test)
    assert max(turns) <= 3, f"{max(turns)} reads between two looks at the sockets"
    there.close()


def test_recent_entries_that_bring_the_next_ones_take_turns_with_the_sockets() -> None:
    """A consumer with many permits at the end of its backlog: nothing has to be waited for, and others wait for all of it."""
    here, there = socket.socketpair()

    async def test(world: World) -> None:
        await asyncio.get_running_loop().create_connection(lambda: Listener(world.done), sock=here)
        world.cached, world.locations = lambda *_: ["recent"], lambda *_: []  # type: ignore[method-assign]

        def answered(entries: Any, _error: str) -> None:
            assert entries == ["recent"]
            world.done.append("read")
            there.send(b"x")
            if world.done.count("read") < 20:
                ask()

        def ask() -> None:
            world.outbox.put(Read("t", NONE, 1, 1, answered))

        world.driver.run(ask)
        await world.until(lambda: world.done.count("read") == 20 and world.done[-1] == "socket")

    done = run(test).done
    last = len(done) - 1 - done[::-1].index("read")
    assert done[:last].count("socket") >= 15, f"sockets waited for all reads: {done}"
    there.close()


def test_recent_entries_are_at_hand_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that was just published need not wait for a turn."""
    monkeypatch.setattr(module, "TURN_S", 1_000.0)

    async def test(world: World) -> None:
        asked = Read("t", NONE, 1, 1, lambda _entries, _error: world.done.append("read"))
        world.cached, world.locations = lambda *_: ["recent"], lambda *_: []  # type: ignore[method-assign]
        world.driver.run(lambda: world.outbox.put(asked))
        assert world.done == ["read"]

    run(test)


def test_what_is_written_goes_to_the_log() -> None:
    async def test(world: World) -> None:
        world.driver.run(lambda: world.outbox.put(Write("an append")))  # type: ignore[arg-type]
        assert world.submitted == ["an append"]

    run(test)


def test_a_sync_is_answered_behind_the_logs_reports() -> None:
    async def test(world: World) -> None:
        barriers: list[Callable[[str], None]] = []
        world.log.sync = barriers.append
        world.driver.run(lambda: world.outbox.put(Sync(lambda error: world.done.append(f"synced {error!r}"))))
        (barrier,) = barriers
        world.driver.appended(["first"])  # type: ignore[list-item]
        barrier("")
        await world.until(lambda: len(world.done) == 2)

    assert run(test).done == ["appended ['first']", "synced ''"]


def test_what_comes_after_the_end_is_not_heard() -> None:
    """Sockets that are being closed may bring a last frame, and a reader's thread is gone."""

    async def test(world: World) -> None:
        world.driver.shut_down()
        asked = Read("t", NONE, 1, 1, lambda entries, error: None)
        world.driver.run(lambda: world.outbox.put(asked))
        assert not world.outbox.effects
        assert not world.driver.stopped.is_set()

    run(test)


def test_an_exception_stops_the_broker() -> None:
    async def test(world: World) -> None:
        def broken() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            world.driver.run(broken)
        assert world.driver.stopped.is_set()

    run(test)


def test_after_the_shut_down_nothing_is_handled() -> None:
    """What waits for a turn would ask for threads that are gone."""

    async def test(world: World) -> None:
        world.driver._background.append((world.event("a timer"), ()))
        world.driver._wake()
        world.driver.shut_down()
        world.driver.run(world.event("a frame"))
        world.driver.appended([])
        await world.until(lambda: not world.driver._background)
        await asyncio.sleep(0)
        assert not world.done

    run(test)


def test_after_the_end_of_the_lease_nothing_is_handled(caplog: pytest.LogCaptureFixture) -> None:
    """Not even what waits in the sockets of a process that was stopped, and wakes: its timers come after them."""

    async def test(world: World) -> None:
        world.driver.run(world.event("first"))
        world.driver._in_turn(world.event("waits"))
        world.lease.give_up()
        world.driver.run(world.event("from a socket"))
        world.driver.appended(["x"])  # type: ignore[list-item]
        assert world.driver.stopped.is_set()
        await asyncio.sleep(0)
        world.driver.run(world.event("later"))

    world = run(test)
    assert world.done == ["first"]
    assert world.driver.ended
    assert [line.getMessage() for line in caplog.records] == ["the broker stops: it has given up the log"]


def test_within_the_lease_events_are_handled() -> None:
    async def test(world: World) -> None:
        lease = Lease(1_000.0, "/owner")
        world.driver._lease = lease
        lease.taken(time.perf_counter())
        world.driver.run(world.event("one"))
        lease.taken(time.perf_counter() - 700.0)
        world.driver.run(world.event("two"))

    assert run(test).done == ["one"]

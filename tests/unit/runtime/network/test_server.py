"""A connection's turn: who sends thousands of commands without a pause does not hold up the others."""

import asyncio
import contextlib
import logging
import socket
import ssl
import statistics
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from magnetar.runtime.network.frame_slices import IDS_MAX
from magnetar.runtime.network.server import (
    LINK_SILENT_INTERVALS,
    RUN_FRAMES_MAX,
    TURN_FRAMES_MAX,
)
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import encode
from tests.support.certificates import Authority
from tests.support.listener import PING, FakeDriver, serve, until


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_thousands_of_frames_come_in_turns_and_others_in_between(run: Callable[..., Any]) -> None:
    async def go() -> None:
        driver = FakeDriver()
        server, port = await serve(driver)
        _, greedy = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: 1 in driver.peers)
        _, other = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: 2 in driver.peers)
        greedy.write(PING * 30_000)
        await until(lambda: driver.count(1) >= TURN_FRAMES_MAX)
        other.write(PING)
        await until(lambda: driver.count(1) == 30_000 and driver.count(2) == 1)
        assert max(frames for _, frames in driver.handled) == RUN_FRAMES_MAX
        behind = driver.handled[driver.handled.index((2, 1)) :]
        assert sum(frames for _, frames in behind) > TURN_FRAMES_MAX, "it did not wait for the end"
        greedy.close()
        other.close()
        await until(lambda: not driver.peers)
        await server.stop()

    run(go())


@pytest.mark.parametrize(("turn_s", "frames"), [(0.0, RUN_FRAMES_MAX), (1_000.0, TURN_FRAMES_MAX)])
def test_a_turn_ends_by_time_or_by_number(monkeypatch: pytest.MonkeyPatch, turn_s: float, frames: int) -> None:
    """What takes long comes in smaller portions; what does not would only become slower."""
    monkeypatch.setattr("magnetar.runtime.network.server.TURN_S", turn_s)

    async def go() -> None:
        driver = FakeDriver()
        server, port = await serve(driver)
        _, greedy = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: 1 in driver.peers)
        greedy.write(PING * 10_000)
        portions = []
        while sum(portions) < 10_000:
            await asyncio.sleep(0)
            portions.append(driver.count(1) - sum(portions))
        assert statistics.mode(each for each in portions if each) == frames
        greedy.close()
        await until(lambda: not driver.peers)
        await server.stop()

    asyncio.run(go())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_was_read_before_a_pause_waits_and_comes_first(run: Callable[..., Any]) -> None:
    async def go() -> None:
        driver = FakeDriver()
        driver.hold_after = 2 * TURN_FRAMES_MAX
        server, port = await serve(driver)
        _, client = await asyncio.open_connection("127.0.0.1", port)
        client.write(PING * 1_000)
        await until(lambda: driver.count(1) >= driver.hold_after)
        for _ in range(100):
            await asyncio.sleep(0)
        assert driver.count(1) == driver.hold_after, "none is handled while it is held"
        driver.hold_after = 0
        driver.peers[1].hold(False)
        await until(lambda: driver.count(1) == 1_000)
        client.write(b"\x00\x00\x00\x01nonsense")
        driver.quiet = type("Quiet", (), {"warn": lambda self, line: None})()
        await until(lambda: not driver.peers)
        await server.stop()

    run(go())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_command_that_acknowledges_much_comes_in_turns(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """Others have theirs in between; a pause stops it in the middle, and what is wrong behind it comes behind it."""
    monkeypatch.setattr("magnetar.runtime.network.server.TURN_S", 0.0)
    ids = [pb.MessageIdData(ledgerId=1, entryId=entry) for entry in range(50 * IDS_MAX)]
    much = encode(pb.BaseCommand(type=10, ack=pb.CommandAck(consumer_id=1, ack_type=0, message_id=ids)))

    async def go() -> None:
        driver = FakeDriver()
        driver.quiet = Silence()
        server, port = await serve(driver)
        _, greedy = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: 1 in driver.peers)
        _, other = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: 2 in driver.peers)
        driver.hold_after = 10
        greedy.write(much)
        await until(lambda: driver.count(1) == 10)
        for _ in range(100):
            await asyncio.sleep(0)
        assert driver.count(1) == 10, "none is handled while it is held"
        driver.hold_after = 0
        other.write(PING)
        driver.peers[1].hold(False)
        await until(lambda: driver.count(1) == 50 and driver.count(2) == 1)
        assert driver.handled.index((2, 1)) < len(driver.handled) - 1, "it did not wait for the end"
        greedy.write(much + PING + b"\xff" * 20)
        await until(lambda: driver.count(1) == 101)
        await until(lambda: list(driver.peers) == [2])
        other.close()
        await until(lambda: not driver.peers)
        await server.stop()

    run(go())


def test_frames_in_front_of_a_fault_are_handled_whatever_their_number() -> None:
    async def go() -> None:
        driver = FakeDriver()
        driver.quiet = type("Quiet", (), {"warn": lambda self, line: None})()
        server, port = await serve(driver)
        _, client = await asyncio.open_connection("127.0.0.1", port)
        client.write(PING * 999 + b"\xff" * 20)
        await until(lambda: driver.count(1) == 999)
        await until(lambda: not driver.peers)
        await server.stop()

    uvloop.run(go())


class Silence:
    """A `Quiet` that lets no line through."""

    def warn(self, line: str) -> None:
        """It is not written."""


@pytest.mark.parametrize("link", [False, True])
def test_who_is_let_in_may_send_more_and_only_a_link_may_be_silent(link: bool) -> None:
    large = encode(pb.BaseCommand(type=2, connect=pb.CommandConnect(client_version="x" * (3 << 19))))

    async def go() -> None:
        driver = FakeDriver()
        driver.quiet = Silence()
        server, port = await serve(driver)
        for let_in in (True, False):
            before = sum(frames for _, frames in driver.handled)
            _, client = await asyncio.open_connection("127.0.0.1", port)
            await until(lambda: bool(driver.peers))
            (peer,) = driver.peers.values()
            if let_in:
                peer.let_in(1 << 21, 1 << 21, link=link)
                assert peer._silent_max == (LINK_SILENT_INTERVALS if link else 1)
            client.write(large)
            wanted = before + let_in
            await until(lambda: sum(frames for _, frames in driver.handled) == wanted and bool(driver.peers) == let_in)  # noqa: B023
            client.close()
            await until(lambda: not driver.peers)
        await server.stop()

    uvloop.run(go())


class Loud:
    """Lets every warning through."""

    def warn(self, line: str) -> None:
        logging.getLogger("magnetar.broker").warning("%s", line)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_who_never_ends_a_handshake_has_a_place_among_the_connections(
    run: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.sign("server"))
    trusting = ssl.create_default_context(cafile=str(authority.file))

    async def go() -> None:
        driver = FakeDriver()
        driver.quiet = Loud()
        server, port = await serve(driver, tls, connections_max=3)
        plain = await server.start("127.0.0.1", 0)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        # Those that shake hands are counted, and so are those that did.
        _, third = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        await until(lambda: len(driver.peers) == 1)
        for at in (port, plain):
            reader, writer = await asyncio.open_connection("127.0.0.1", at)
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(30):
                    assert await reader.read() == b""
            writer.close()
        assert len(driver.peers) == 1
        refusals = [record.message for record in caplog.records if "refused a connection" in record.message]
        assert len(refusals) == 2, refusals
        assert all("1 are open, 2 in handshakes of TLS (connections_max)" in line for line in refusals)
        # Each gives its place back, whatever became of it.
        for _, writer in silent:
            writer.close()
        third.close()
        await until(lambda: not driver.peers and server.shaking == 0)
        inside = [await asyncio.open_connection("127.0.0.1", port, ssl=trusting) for _ in range(3)]
        await until(lambda: len(driver.peers) == 3 and server.shaking == 0)
        for _, writer in inside:
            writer.close()
        await until(lambda: not driver.peers)
        await server.stop()

    caplog.set_level(logging.WARNING)
    run(go())


def test_handshakes_that_are_given_up_at_the_end_are_counted_out(tmp_path: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*Authority(tmp_path).sign("server"))

    async def go() -> None:
        server, port = await serve(FakeDriver(), tls)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: server.shaking == 1)
        await server.stop()
        await until(lambda: server.shaking == 0)
        writer.close()

    asyncio.run(go())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("behind", [False, True], ids=["at once", "behind others"])
def test_what_is_sent_now_keeps_its_place(run: Callable[..., Any], behind: bool) -> None:
    """It is on its way before the loop turns, unless something waits in front of it; and whole, however little is taken."""
    first, now, last = b"f" * 3_000_000 if behind else b"", b"n" * 20_000_000, b"last"

    async def go() -> None:
        driver = FakeDriver()
        server, port = await serve(driver)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        await until(lambda: 1 in driver.peers)
        peer = driver.peers[1]
        if behind:
            peer.send([first])
        peer.send_now(memoryview(b"head" + now))
        peer.send([last])
        whole = first + b"head" + now + last
        assert await reader.readexactly(len(whole)) == whole
        await until(lambda: not peer._transport.get_write_buffer_size())  # type: ignore[union-attr]
        peer.send_now(b"small")
        assert peer._transport is not None
        assert not peer._transport.get_write_buffer_size(), "it waits for the loop"
        assert await reader.readexactly(5) == b"small"
        writer.close()
        await until(lambda: not driver.peers)
        peer.send_now(b"nobody is there")
        await server.stop()

    run(go())


def test_to_a_peer_who_is_gone_nothing_is_sent_now_and_nothing_breaks() -> None:
    async def go() -> None:
        driver = FakeDriver()
        server, port = await serve(driver)
        with socket.create_connection(("127.0.0.1", port)) as link:
            await until(lambda: 1 in driver.peers)
            peer = driver.peers[1]
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for _ in range(3):  # the reset is there, and nobody has looked
            peer.send_now(b"receipt")
        await until(lambda: not driver.peers)
        await server.stop()

    uvloop.run(go())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("by_tls", [False, True])
def test_strangers_make_room_for_who_comes(
    run: Callable[..., Any], by_tls: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*Authority(tmp_path).sign("server"))

    async def go() -> None:
        driver = FakeDriver()
        driver.quiet = Loud()
        server, port = await serve(driver, tls if by_tls else None, connections_max=30)
        plain = await server.start("127.0.0.1", 0) if by_tls else port
        known_reader, known = await asyncio.open_connection("127.0.0.1", plain)
        await until(lambda: len(driver.peers) == 1)
        driver.peers[1].let_in(1 << 20, 1 << 20, link=False)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(29)]
        await until(lambda: server.open + server.shaking == 30)
        reader, writer = await asyncio.open_connection("127.0.0.1", plain)
        await until(lambda: any("another connection needed its slot" in record.message for record in caplog.records))
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(30):
                assert await idle[0][0].read() == b"", "the oldest of them goes"
        await until(lambda: server.open + server.shaking == 30)
        writer.write(PING)
        known.write(PING)
        await until(lambda: len({number for number, _ in driver.handled}) == 2)
        for _, other in (*idle, (reader, writer), (known_reader, known)):
            other.close()
        await until(lambda: not driver.peers and server.shaking == 0)
        await server.stop()

    caplog.set_level(logging.WARNING)
    run(go())

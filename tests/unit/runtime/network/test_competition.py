"""Larger portions of plain messages while a connection is alone."""

import asyncio

import pytest

from magnetar.runtime.network import competition, server
from magnetar.runtime.network.competition import ALONE_S, KEEP_ALIVE_BYTES, Competition
from magnetar.runtime.network.server import ALONE_FRAMES_MAX, RUN_FRAMES_MAX, TURN_FRAMES_MAX
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import encode
from tests.support.listener import PING, FakeDriver, serve, until

PLAIN = encode(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=1)))
BATCH = encode(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=1, num_messages=9)))


def test_a_connection_is_alone_when_no_other_has_worked_for_a_while() -> None:
    found = Competition()
    assert found.alone(1, 500, 0.0)
    assert not found.alone(2, 500, 0.0)
    assert not found.alone(1, 0, 0.0)
    assert not found.alone(1, 500, ALONE_S * 0.99)
    assert found.alone(1, 500, ALONE_S)
    assert not found.alone(2, 500, ALONE_S), "the first one waits too, from now on"
    assert not found.alone(1, 500, ALONE_S)
    assert not found.alone(2, 500, 1.5 * ALONE_S)
    assert not found.alone(1, 500, 1.5 * ALONE_S)
    assert not found.alone(1, 500, 2.4 * ALONE_S)
    assert found.alone(1, 500, 2.5 * ALONE_S)


def test_a_closed_connection_does_not_compete() -> None:
    found = Competition()
    assert found.alone(1, 500, 0.0)
    found.left(1)
    assert found.alone(2, 500, 0.0)
    assert not found.alone(3, 500, 0.0)
    found.left(3)
    assert not found.alone(2, 500, 0.9 * ALONE_S), "the other one may have waited for it"
    found.left(3)
    assert found.alone(2, 500, ALONE_S)


def test_pings_of_idle_connections_are_no_work() -> None:
    found = Competition()
    assert len(PING) == KEEP_ALIVE_BYTES == len(encode(pb.BaseCommand(type=19, pong=pb.CommandPong())))
    assert found.alone(1, 500, 0.0)
    assert not found.alone(2, KEEP_ALIVE_BYTES, 0.0), "it has no large portion itself"
    assert found.alone(1, 500, 0.0)
    flow = encode(pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=0, messagePermits=1)))
    assert not found.alone(2, len(flow), 0.0)


async def portions(data: bytes, frames: int, *, shared: bool) -> list[int]:
    """The sizes of the events in which frames of one connection are handled; `shared`: another connection works, too."""
    driver = FakeDriver()
    listening, port = await serve(driver)
    _, other = await asyncio.open_connection("127.0.0.1", port)
    await until(lambda: 1 in driver.peers)
    _, greedy = await asyncio.open_connection("127.0.0.1", port)
    await until(lambda: 2 in driver.peers)
    greedy.write(PLAIN)
    await until(lambda: driver.count(2) == 1)
    if shared:
        other.write(PLAIN)
        await until(lambda: driver.count(1) == 1)
    driver.handled.clear()
    greedy.write(data)
    await until(lambda: driver.count(2) == frames)
    for writer in (greedy, other):
        writer.close()
    await until(lambda: not driver.peers)
    await listening.stop()
    return [count for _, count in driver.handled]


def test_plain_messages_come_in_large_portions_only_while_nobody_else_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competition, "ALONE_S", 1_000.0)
    alone = asyncio.run(portions(PLAIN * 5_000, 5_000, shared=False))
    assert max(alone) == ALONE_FRAMES_MAX
    shared = asyncio.run(portions(PLAIN * 5_000, 5_000, shared=True))
    assert max(shared) == RUN_FRAMES_MAX


def test_other_commands_come_in_the_usual_portions() -> None:
    assert max(asyncio.run(portions(PING * 5_000, 5_000, shared=False))) == RUN_FRAMES_MAX
    assert max(asyncio.run(portions(BATCH * 5_000, 5_000, shared=False))) == RUN_FRAMES_MAX
    mixed = asyncio.run(portions((PLAIN * 30 + PING * 70) * 50, 5_000, shared=False))
    assert RUN_FRAMES_MAX < max(mixed) <= ALONE_FRAMES_MAX


def test_whole_frames_before_a_fault_are_handled_in_a_large_portion_too() -> None:
    async def go() -> int:
        driver = FakeDriver()
        driver.quiet = type("Quiet", (), {"warn": lambda self, line: None})()
        listening, port = await serve(driver)
        _, greedy = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: 1 in driver.peers)
        greedy.write(PLAIN * 150 + b"\x00\x00\x00\x01nonsense")
        await until(lambda: not driver.peers)
        greedy.close()
        await listening.stop()
        return driver.count(1)

    assert asyncio.run(go()) == 150


def test_a_large_portion_is_a_turn() -> None:
    assert server.ALONE_FRAMES_MAX > TURN_FRAMES_MAX
    assert server.ALONE_FRAMES_MAX % RUN_FRAMES_MAX == 0

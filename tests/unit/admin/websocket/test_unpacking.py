"""Large payloads on their way to a WebSocket: taken apart when there is memory for them."""

import asyncio
import zlib
from typing import Any

import pytest

from magnetar.admin.http.answers import Answers
from magnetar.admin.websocket.unpacking import LARGE_BYTES, TIMES_HELD, Unpacker, Unreadable
from magnetar.core.errors import BrokerError
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build

COMMAND = pb.CommandMessage(consumer_id=0, message_id=pb.MessageIdData(ledgerId=1, entryId=1))


def stored(payload: bytes, size: int) -> bytes:
    """An entry that says that it holds so many bytes."""
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, compression=2, uncompressed_size=size
    )
    return build(metadata, payload)


@pytest.mark.parametrize("size", [1_000, LARGE_BYTES, LARGE_BYTES + 1])
def test_memory_is_held_for_what_is_large(size: int) -> None:
    async def story() -> None:
        answers = Answers()
        unpacker = Unpacker(-1, answers.beside, answers.hold)
        (message,) = await unpacker.messages(COMMAND, stored(zlib.compress(bytes(size)), size))
        assert len(message.payload) == size
        assert answers.held == (TIMES_HELD * size if size > LARGE_BYTES else 0)
        for held in unpacker.holding:
            held.release()
        assert answers.held == 0
        answers.close()

    asyncio.run(story())


@pytest.mark.parametrize("size", [LARGE_BYTES, LARGE_BYTES + 1])
def test_memory_is_held_for_large_payloads_that_are_not_compressed(size: int) -> None:
    """A WebSocket that takes nothing has each in several shapes at once."""

    async def story() -> None:
        answers = Answers()
        unpacker = Unpacker(-1, answers.beside, answers.hold)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        await unpacker.messages(COMMAND, build(metadata, bytes(size)))
        assert answers.held == (TIMES_HELD * size if size > LARGE_BYTES else 0)
        answers.close()

    asyncio.run(story())


def test_a_forged_size_holds_nothing_and_want_of_memory_is_no_damage() -> None:
    async def story() -> None:
        answers: Any = Answers(8 << 20, 8 << 20)
        answers.waits_s = 0.01
        unpacker = Unpacker(-1, answers.beside, answers.hold)
        with pytest.raises(Unreadable):
            await unpacker.messages(COMMAND, stored(b"x" * 100, 60 << 20))
        assert answers.held == 0 and not unpacker.holding
        other = await answers.hold(8 << 20)
        with pytest.raises(BrokerError, match="http_answers_bytes_max"):
            await unpacker.messages(COMMAND, stored(zlib.compress(bytes(2 << 20)), 2 << 20))
        other.release()
        assert answers.held == 0
        answers.close()

    asyncio.run(story())

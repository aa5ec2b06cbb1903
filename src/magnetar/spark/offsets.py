"""Offsets of the format `pulsar`: the position of a query in each topic.

    {"topics": {"persistent://public/default/t-partition-0": [12, 5, -1]}, "v": 1}

A position is `[ledger, entry, batch index]` of the last message that was read; index -1: the whole entry; `[-1, -1,
-1]`: nothing yet. Spark compares offsets as JSON strings, so there is one encoder, with sorted keys and integers only.
A serialised message id as a list of bytes is accepted too, as in the JVM connector's `startingOffsets`.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.core.errors import ConfigError, NameNotValid
from magnetar.core.names import TopicName
from magnetar.wire import pulsar_pb2 as pb

VERSION: Final = 1


class MessagePosition(NamedTuple):
    """A message's position; `index` -1: its whole entry."""

    ledger: int
    entry: int
    index: int = -1  # type: ignore[assignment]  # hides tuple.index, which is not used

    @property
    def reach(self) -> tuple[int, int, int]:
        """The key for comparisons: the whole entry comes after each of its messages."""
        return self.ledger, self.entry, self.index if self.index >= 0 else 1 << 31


EARLIEST: Final = MessagePosition(-1, -1, -1)
"""Nothing was read yet."""

Positions = dict[str, MessagePosition]


def full_name(topic: str) -> str:
    """A topic's name with everything that short forms leave out.

    Raises:
        ConfigError: it is not one.
    """
    try:
        return str(TopicName.parse(topic))
    except NameNotValid as error:
        raise ConfigError(str(error)) from None


def encode(positions: Mapping[str, MessagePosition]) -> dict[str, Any]:
    """The offset as Spark's runner takes it; `json.dumps` of it is canonical."""
    return {"topics": {topic: list(positions[topic]) for topic in sorted(positions)}, "v": VERSION}


def text(positions: Mapping[str, MessagePosition]) -> str:
    """The offset as Spark stores it."""
    return json.dumps(encode(positions))


def decode(value: Any, where: str = "the checkpoint") -> Positions:
    """The positions of an offset; see the module's text for the accepted forms.

    Raises:
        ConfigError: it has none of these forms; the error names `where` it came from.
    """
    if not isinstance(value, dict):
        raise ConfigError(f"{where} holds no offset of format pulsar: {_shown(value)}")
    if "v" in value:
        if value["v"] == VERSION and not isinstance(value.get("topics"), dict):
            raise ConfigError(f"{where} holds no offset of format pulsar: {_shown(value)}")
        if value["v"] != VERSION:
            raise ConfigError(
                f"{where} holds an offset of version {_shown(value['v'])}; this release reads version {VERSION}"
            )
        value = value["topics"]
    return {full_name(topic): _position(topic, position, where) for topic, position in value.items()}


def _position(topic: str, value: Any, where: str) -> MessagePosition:
    if value in ("earliest", -2):
        return EARLIEST
    integers = isinstance(value, list) and all(type(item) is int for item in value)
    if integers and len(value) == 3:
        position = MessagePosition(*value)
        if position == EARLIEST or (
            0 <= position.ledger < 1 << 63 and -1 <= position.entry < 1 << 63 and -1 <= position.index < 1 << 31
        ):
            return position
    elif integers and value and all(-128 <= item <= 255 for item in value):
        try:
            return of_bytes(bytes(item & 255 for item in value))
        except DecodeError:
            pass
    raise ConfigError(
        f"{where}: {_shown(value)} is not a valid position in {topic}: write [ledger, entry, batch index], "
        "or the bytes of a message id"
    )


def of_bytes(data: bytes) -> MessagePosition:
    """The position in a serialised message id of the official clients.

    Raises:
        DecodeError: it is not a message id.
    """
    found = pb.MessageIdData.FromString(data)
    if not found.IsInitialized():
        raise DecodeError
    if found.entryId >= 1 << 63:
        return EARLIEST
    return MessagePosition(found.ledgerId, found.entryId, found.batch_index)


def _shown(value: Any) -> str:
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 80 else shown[:77] + "..."

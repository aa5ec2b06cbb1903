"""Single messages of a topic, and positions in it: reading, finding, measuring."""

from typing import Any

from aiohttp import web

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.peek import peeked
from magnetar.admin.routes.subscriptions import position_of, required_message_id
from magnetar.admin.routes.topics import message_id, one, stored
from magnetar.core.ids import Position
from magnetar.metadata.policies.namespace import MessageIdOrText

messages = Routes("Messages", "/admin/v2/persistent", "/admin/v2/non-persistent")

TOPIC = "/{tenant}/{namespace}/{topic}"
NONE = "there is no such message"
PAYLOAD = "the payload; X-Pulsar-* headers describe it"


def _one(call: Call, doing: str) -> str:
    return str(one(call, stored(call.topic(), doing), doing))


@messages.add(
    "GET",
    TOPIC + "/ledger/{ledger}/entry/{entry}",
    "Return the message with an id.",
    errors=(400, 404, 405, 412),
    query={"authoritative": "accepted."},
    reply=PAYLOAD,
)
async def get_message(call: Call) -> web.StreamResponse:
    """For one partition. Markers are included; a batch made by a client is returned as a whole; an encrypted payload as
    it is stored.
    """
    topic = _one(call, "looking at a message")
    position = Position(call.path_number("ledger"), call.path_number("entry"))
    return await peeked(call, lambda done: call.control.messages.at(topic, position, done), NONE)


@messages.add(
    "GET",
    TOPIC + "/examinemessage",
    "Return the n-th stored message, from the oldest or from the newest.",
    errors=(400, 404, 405, 412),
    query={
        "initialPosition": "start of the count: latest (the default) or earliest.",
        "messagePosition": "number of the message, from 1 (the default).",
        "authoritative": "accepted.",
    },
    reply=PAYLOAD,
)
async def examine(call: Call) -> web.StreamResponse:
    """For one partition; a batch counts as one message, as in Pulsar, and markers do not count."""
    topic = _one(call, "examinemessage")
    newest = call.choice("initialPosition", ("latest", "earliest"), "latest") == "latest"
    number = call.number("messagePosition", 1, 1)
    return await peeked(call, lambda done: call.control.messages.examine(topic, number, newest, done), NONE)


@messages.add(
    "GET",
    TOPIC + "/messageid/{timestamp}",
    "Id of the first message published at or after a time (ms); if there is none, the lowest possible id of the "
    "next message.",
    errors=(400, 404, 405, 412),
    query={"authoritative": "accepted."},
    reply='{"ledgerId": 12, "entryId": 3, "partitionIndex": -1}',
)
async def find_message(call: Call) -> Any:
    """One partition. Of batches the time of their first message counts."""
    topic = one(call, stored(call.topic(), "messageid"), "messageid")
    return message_id(topic, call.control.messages.position_since(str(topic), call.path_number("timestamp")))


@messages.add(
    "PUT",
    TOPIC + "/backlogSize",
    "Stored bytes from a message to the end, including the message.",
    errors=(404, 405, 412),
    query={"authoritative": "accepted."},
    body=MessageIdOrText,
    reply="4096",
)
async def size_from(call: Call) -> Any:
    """For one partition. It changes nothing; for a deleted id, the size of the entries stored after it."""
    topic = _one(call, "backlogSize")
    return call.control.messages.bytes_from(topic, position_of(await required_message_id(call)))

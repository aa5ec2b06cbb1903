"""Entries that cannot be read: the subscriptions that are stopped at one, and giving it up."""

from typing import Any

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.topics import one, partitions_of, stored
from magnetar.core.ids import Position

damage = Routes("Damaged entries", "/geo/v1", own=True)

TOPIC = "/persistent/{tenant}/{namespace}/{topic}/damaged"


@damage.add(
    "GET",
    TOPIC,
    "The subscriptions and readers that have stopped at an entry that cannot be read, by topic or partition.",
    errors=(404, 412),
    reply='{"persistent://public/default/t": [{"subscription": "billing", "position": "7:41", "reason": "corrupt: ..."}]}',
)
async def get(call: Call) -> Any:
    """Only entries that a reader has met are reported: an entry that is not read is not checked."""
    topics = partitions_of(call, stored(call.topic(), "damaged entries"))
    return {str(topic): call.control.messages.stopped(str(topic)) for topic in topics}


@damage.add(
    "DELETE",
    TOPIC + "/{ledger}/{entry}",
    "Give up an entry that cannot be read: it counts as acknowledged in every present and later subscription and "
    "reader.",
    ok=204,
    errors=(400, 404, 405, 412),
)
async def give_up(call: Call) -> None:
    """One partition. 412 when it can be read. Links are not concerned: they have a skip of their own."""
    topic = str(one(call, stored(call.topic(), "damaged entries"), "giving up an entry"))
    position = Position(call.path_number("ledger"), call.path_number("entry"))
    await call.done(lambda done: call.control.messages.give_up(topic, position, done))

"""Sequence ids of producers that deduplication keeps: listing them, and resetting a name."""

from typing import Any

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.topics import partitions_of, stored
from magnetar.metadata.errors import NotFound

sequence_ids = Routes("Sequence ids", "/geo/v1", own=True)

TOPIC = "/persistent/{tenant}/{namespace}/{topic}/sequence-ids"


@sequence_ids.add(
    "GET",
    TOPIC,
    "The highest stored sequence id of each producer name, by topic or partition.",
    errors=(404, 412),
    reply='{"persistent://public/default/t": {"importer": 42}}',
)
async def get(call: Call) -> Any:
    """-1: the name is known, and nothing of it is stored yet."""
    topics = partitions_of(call, stored(call.topic(), "sequence ids"))
    return {str(topic): call.control.topics.sequence_ids(str(topic)) for topic in topics}


@sequence_ids.add(
    "DELETE",
    TOPIC + "/{producer}",
    "Forget a producer name's sequence ids: its next messages are new. Its producers reconnect once.",
    ok=204,
    errors=(404, 412),
)
async def forget(call: Call) -> None:
    """Forget the name in all partitions that know it."""
    topic, name = stored(call.topic(), "sequence ids"), call.name("producer")
    known = [one for one in partitions_of(call, topic) if name in call.control.topics.sequence_ids(str(one))]
    if not known:
        raise NotFound(f"no sequence id is kept of a producer {name[:100]!r} of {topic}")
    await call.each(known, lambda one, done: call.control.topics.forget_producer(one, name, done))

"""Operations on all topics of a namespace at once, on Pulsar's paths."""

from functools import partial
from typing import Any, Final
from zlib import crc32

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.unsupported.not_built import WHOLE_RANGE
from magnetar.broker.context import Done
from magnetar.core.names import TopicName

namespacewide = Routes("All topics of a namespace", "/admin/v2/namespaces/{tenant}/{namespace}")

AUTHORITATIVE = {"authoritative": "accepted."}

BUNDLES: Final = {"boundaries": WHOLE_RANGE.split("_"), "numBundles": 1}
"""The pieces of every namespace."""

SYSTEM_PREFIX: Final = "__"
"""Local names of a broker's own topics begin so; lists leave them out unless asked."""


def is_system(name: str) -> bool:
    """Whether a topic is one of the broker's own, which lists leave out unless they are asked for."""
    return name.rpartition("/")[2].startswith(SYSTEM_PREFIX)


def _topics(call: Call, subscription: str = "") -> list[TopicName]:
    """Persistent topics, of those only that have the subscription if one is named."""
    names = call.control.topics.names(str(call.existing_namespace()))
    found = [TopicName.parse(name) for name in names if name.startswith("persistent://")]
    return [
        topic for topic in found if not subscription or subscription in call.control.subscriptions.names(str(topic))
    ]


def _skip_all(call: Call, subscription: str, topic: str, done: Done) -> None:
    call.control.subscriptions.skip_all(topic, subscription, done)


@namespacewide.add(
    "POST",
    "/clearBacklog",
    "Acknowledge everything in every subscription of every topic.",
    ok=204,
    errors=(404, 412),
    query=AUTHORITATIVE,
)
@namespacewide.add(
    "POST",
    f"/{WHOLE_RANGE}/clearBacklog",
    "The same, because a namespace has one bundle.",
    ok=204,
    errors=(404, 412),
    query=AUTHORITATIVE,
)
async def clear_backlog(call: Call) -> None:
    """Messages that a link has not sent stay."""
    for topic in _topics(call):
        for name in call.control.subscriptions.names(str(topic)):
            await call.each([topic], partial(_skip_all, call, name))


@namespacewide.add(
    "POST",
    "/clearBacklog/{subscription}",
    "Acknowledge everything in this subscription of every topic that has it.",
    ok=204,
    errors=(404, 412),
    query=AUTHORITATIVE,
)
@namespacewide.add(
    "POST",
    f"/{WHOLE_RANGE}/clearBacklog/{{subscription}}",
    "The same, because a namespace has one bundle.",
    ok=204,
    errors=(404, 412),
    query=AUTHORITATIVE,
)
async def clear_backlog_of(call: Call) -> None:
    """Topics without the subscription are ignored."""
    name = call.subscription()
    await call.each(_topics(call, name), lambda text, done: call.control.subscriptions.skip_all(text, name, done))


@namespacewide.add(
    "POST",
    "/unsubscribe/{subscription}",
    "Delete this subscription of every topic that has it; refused if it has consumers.",
    ok=204,
    errors=(404, 412),
    query=AUTHORITATIVE,
)
@namespacewide.add(
    "POST",
    f"/{WHOLE_RANGE}/unsubscribe/{{subscription}}",
    "The same, because a namespace has one bundle.",
    ok=204,
    errors=(404, 412),
    query=AUTHORITATIVE,
)
async def unsubscribe(call: Call) -> None:
    """Topics without the subscription are ignored."""
    name = call.subscription()
    await call.each(_topics(call, name), lambda text, done: call.control.subscriptions.delete(text, name, False, done))


@namespacewide.add(
    "PUT",
    "/unload",
    "Close the clients of every topic, which reconnect.",
    ok=204,
    errors=(404, 412),
    query=AUTHORITATIVE,
)
@namespacewide.add(
    "PUT",
    f"/{WHOLE_RANGE}/unload",
    "The same, because a namespace has one bundle.",
    ok=204,
    errors=(404, 412),
    query=AUTHORITATIVE | {"destinationBroker": "accepted: a cluster has one broker."},
)
async def unload(call: Call) -> None:
    """Topics of both domains, in parallel: one after the other would take longer than a client waits."""
    names = call.control.topics.names(str(call.existing_namespace()))
    await call.each([TopicName.parse(name) for name in names], call.control.topics.unload)


@namespacewide.add(
    "GET",
    "/bundles",
    "The bundles of a namespace: one.",
    errors=(404, 412),
    reply='{"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}',
)
async def bundles(call: Call) -> Any:
    """All hashes of names."""
    call.existing_namespace()
    return BUNDLES


@namespacewide.add(
    "GET",
    f"/{WHOLE_RANGE}/topicHashPositions",
    "The hash of each topic's name.",
    errors=(404, 412),
    query={"topics": "full names with commas; default: all."},
    reply='{"namespace": "public/default", "bundle": "0x00000000_0xffffffff", "topicHashPositions": {"persistent://...": 7}}',
)
async def hash_positions(call: Call) -> Any:
    """The positions by CRC32, as in Pulsar's brokers."""
    namespace = str(call.existing_namespace())
    wanted = {name for name in (call.parameter("topics") or "").split(",") if name}
    names = [name for name in call.control.topics.names(namespace) if not wanted or name in wanted]
    positions = {name: crc32(name.encode()) for name in names}
    return {"namespace": namespace, "bundle": WHOLE_RANGE, "topicHashPositions": positions}

"""Subscriptions of a topic."""

from typing import Any

from aiohttp import web

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.peek import peeked
from magnetar.admin.routes.topics import one, partitions_of, present, stored
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.names import TopicName
from magnetar.metadata.errors import Conflict, NotFound
from magnetar.metadata.policies.namespace import MessageIdBody, MessageIdOrText, check_properties, message_id_of

subscriptions = Routes("Subscriptions", "/admin/v2/persistent", "/admin/v2/non-persistent")

BASE = "/{tenant}/{namespace}/{topic}"
ONE = BASE + "/subscription/{subscription}"


def position_of(body: MessageIdBody) -> Position:
    """The position that a body names."""
    return Position(body.ledger_id, body.entry_id)


def index_of(body: MessageIdBody) -> int:
    """The message of its batch that a body names; -1: none."""
    return body.batch_index if isinstance(body.batch_index, int) else -1


async def optional_message_id(call: Call) -> MessageIdBody | None:
    """The message id of a request's body; None without one.

    Raises:
        BadRequest: it is not one.
    """
    body: MessageIdOrText | None = await call.body()
    return None if body is None else message_id_of(body)


async def required_message_id(call: Call) -> MessageIdBody:
    """The message id of the body of a request that has to have one.

    Raises:
        BadRequest: it is not one.
    """
    return message_id_of(await call.body())


def having(call: Call, doing: str) -> tuple[list[TopicName], str]:
    """The partitions that have the subscription of the path, and its name.

    Raises:
        NotFound: no such topic, or none of its partitions has the subscription. NotAllowed: it stores nothing.
    """
    return _having(call, stored(call.topic(), doing))


def _having(call: Call, topic: TopicName) -> tuple[list[TopicName], str]:
    name = call.subscription()
    found = [part for part in present(call, topic) if name in call.control.subscriptions.names(str(part))]
    if not found:
        raise NotFound(f"subscription {name} of {topic} does not exist")
    return found, name


def _one_having(call: Call, doing: str) -> tuple[str, str]:
    """Like `having`, for operations that are possible on one partition only."""
    one(call, stored(call.topic(), doing), doing)
    topics, name = having(call, doing)
    return str(topics[0]), name


@subscriptions.add("GET", BASE + "/subscriptions", "Names of its subscriptions.", errors=(404, 412), reply='["s", ...]')
async def list_subscriptions(call: Call) -> Any:
    """The subscriptions of all partitions."""
    names = {name for part in present(call, call.topic()) for name in call.control.subscriptions.names(str(part))}
    return sorted(names)


@subscriptions.add(
    "PUT",
    ONE,
    "Create a durable subscription, at a message id, `latest` or `earliest`; without a body at the end. Creates "
    "the topic, too, if `auto_create_topics` allows it.",
    ok=204,
    errors=(404, 405, 409, 412),
    query={"replicated": "true: it is replicated to every cluster of the topic."},
    body=MessageIdOrText,
    body_needed=False,
)
async def create_subscription(call: Call) -> None:
    """Created in every partition; a position that is neither earliest nor latest needs one partition."""
    topic = stored(call.topic(), "a durable subscription")
    name = call.subscription()
    body = await optional_message_id(call)
    position = position_of(body) if body is not None else LATEST
    replicated = call.flag("replicated")
    if position not in {EARLIEST, LATEST}:
        one(call, topic, "a position")
    properties = check_properties(body.properties or {}) if body else {}
    exclusive, index = (body.exclusive, index_of(body)) if body is not None else (False, -1)
    creates = call.resources.comes_when_opened(topic, call.info.topic_auto_creation)
    if call.control.topics.partitions(str(topic)) is None and creates:
        await call.done(lambda done: call.control.topics.open(str(topic), done))
    parts = partitions_of(call, topic)
    missing = [part for part in parts if name not in call.control.subscriptions.names(str(part))]
    if not missing:
        raise Conflict(f"subscription {name} of {topic} exists already")
    await call.each(
        missing,
        lambda part, done: call.control.subscriptions.create(
            part, name, position, replicated, properties, done, exclusive=exclusive, batch_index=index
        ),
    )


@subscriptions.add(
    "DELETE",
    ONE,
    "Delete a subscription.",
    ok=204,
    errors=(404, 412),
    query={"force": "true closes its consumers."},
)
async def delete_subscription(call: Call) -> None:
    """Deleted in every partition, in this cluster. One of a non-persistent topic always has consumers, otherwise it
    would not exist.
    """
    found, name = _having(call, call.topic())
    force = call.flag("force")
    await call.each(found, lambda part, done: call.control.subscriptions.delete(part, name, force, done))


@subscriptions.add(
    "POST",
    ONE + "/resetcursor/{timestamp}",
    "Continue with the first message published at or after a time (ms).",
    ok=204,
    errors=(400, 404, 405, 412),
)
async def reset_to_time(call: Call) -> None:
    """Reset in every partition."""
    found, name = having(call, "resetcursor")
    time_ms = call.path_number("timestamp")
    await call.each(found, lambda part, done: call.control.subscriptions.reset_cursor(part, name, time_ms, False, done))


@subscriptions.add(
    "POST",
    ONE + "/resetcursor",
    "Continue with the message of an id, or after it with excluded or isExcluded; an id that no message ever had "
    "is refused.",
    ok=204,
    errors=(404, 405, 409, 412),
    body=MessageIdOrText,
)
async def reset_to_position(call: Call) -> None:
    """One partition; the earliest (-1, -1) and the latest work for all."""
    body = await required_message_id(call)
    position = position_of(body)
    if position not in {EARLIEST, LATEST}:
        one(call, stored(call.topic(), "resetcursor"), "resetcursor to an id")
    found, name = having(call, "resetcursor")
    index = index_of(body)
    await call.each(
        found,
        lambda part, done: call.control.subscriptions.reset_cursor(
            part, name, position, body.exclusive, done, batch_index=index
        ),
    )


@subscriptions.add(
    "POST", ONE + "/skip/{count}", "Acknowledge the given number of entries.", ok=204, errors=(400, 404, 405, 412)
)
async def skip(call: Call) -> None:
    """For one partition; a batch counts as one message, as in Pulsar."""
    topic, name = _one_having(call, "skip")
    entries = call.path_number("count", 1)
    await call.done(lambda done: call.control.subscriptions.skip(topic, name, entries, done))


@subscriptions.add("POST", ONE + "/skip_all", "Acknowledge all messages.", ok=204, errors=(404, 405, 412))
async def skip_all(call: Call) -> None:
    """Skip in every partition."""
    found, name = having(call, "skip_all")
    await call.each(found, lambda part, done: call.control.subscriptions.skip_all(part, name, done))


@subscriptions.add(
    "POST",
    ONE + "/expireMessages/{seconds}",
    "Expire messages published more than the given number of seconds ago.",
    ok=204,
    errors=(400, 404, 405, 412),
)
async def expire(call: Call) -> None:
    """Expire in every partition."""
    found, name = having(call, "expireMessages")
    seconds = call.path_number("seconds")
    await call.each(found, lambda part, done: call.control.subscriptions.expire(part, name, seconds, done))


@subscriptions.add(
    "POST",
    ONE + "/expireMessages",
    "Expire everything up to and including the message of an id; without it with excluded or isExcluded.",
    ok=204,
    errors=(404, 405, 409, 412),
    query={"authoritative": "accepted."},
    body=MessageIdOrText,
)
async def expire_to_position(call: Call) -> None:
    """For one partition, in this cluster. A batch expires as a whole; an id after the last message is refused."""
    topic, name = _one_having(call, "expireMessages to an id")
    body = await required_message_id(call)
    position, excluded = position_of(body), body.exclusive
    await call.done(lambda done: call.control.subscriptions.expire_to(topic, name, position, excluded, done))


@subscriptions.add(
    "POST",
    BASE + "/all_subscription/expireMessages/{seconds}",
    "The same for all subscriptions of the topic.",
    ok=204,
    errors=(400, 404, 405, 412),
)
async def expire_all(call: Call) -> None:
    """Expire in every partition."""
    topic = stored(call.topic(), "expireMessages")
    seconds = call.path_number("seconds")
    for part in partitions_of(call, topic):
        for name in call.control.subscriptions.names(str(part)):
            await call.each(
                [part],
                lambda text, done, name=name: call.control.subscriptions.expire(text, name, seconds, done),  # type: ignore[misc]
            )


@subscriptions.add(
    "GET",
    ONE + "/position/{number}",
    "Return the n-th unacknowledged message (from 1) without acknowledging it.",
    errors=(400, 404, 405, 412),
    reply="the payload; X-Pulsar-* headers describe it",
)
async def peek(call: Call) -> web.StreamResponse:
    """One partition. A client-made batch comes as a whole; an encrypted payload as it is stored."""
    topic, name = _one_having(call, "peek")
    number = call.path_number("number", 1)
    none = f"subscription {name} of {topic} has fewer than {number} unacknowledged messages"
    return await peeked(call, lambda done: call.control.messages.peek(topic, name, number, done), none)


@subscriptions.add(
    "POST",
    ONE + "/analyzeBacklog",
    "Count the unacknowledged messages of a subscription, all or from the message of an id on.",
    errors=(404, 405, 412),
    query={"authoritative": "accepted."},
    body=MessageIdOrText,
    body_needed=False,
    reply="AnalyzeSubscriptionBacklogResult",
)
async def analyze_backlog(call: Call) -> Any:
    """One partition. It is known without reading: nothing is slow or cut short."""
    topic, name = _one_having(call, "analyzeBacklog")
    body = await optional_message_id(call)
    return call.control.subscriptions.analyzed_backlog(topic, name, position_of(body) if body is not None else None)

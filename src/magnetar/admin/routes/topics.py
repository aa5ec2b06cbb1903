"""Topics: creating, listing, looking at, deleting."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.aggregate import sum_in_steps
from magnetar.admin.routes.namespace_wide import is_system
from magnetar.admin.unsupported.not_built import NO_BUNDLES, WHOLE_RANGE
from magnetar.core.ids import Position
from magnetar.core.names import PARTITIONS_MAX, TopicName
from magnetar.metadata.errors import Conflict, NotAllowed, NotFound, PreconditionFailed, Unprocessable
from magnetar.metadata.partitions import check_partitions
from magnetar.metadata.policies.namespace import check_properties

topics = Routes("Topics", "/admin/v2/persistent", "/admin/v2/non-persistent")

Int = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Properties = dict[str, str]


class NewPartitions(Struct):
    """Body of a new partitioned topic with properties; a bare number is accepted too."""

    partitions: Int
    properties: Properties = {}


SHADOW_SOURCE: Final = "PULSAR.SHADOW_SOURCE"
"""The property by which Pulsar's tools create a topic that shows the messages of another one."""

SYSTEM_QUERY = {"includeSystemTopic": "true lists the broker's own, too."}
BUNDLE_QUERY = {"bundle": f"{WHOLE_RANGE}, which is all; another one is refused: namespaces have no bundles."}
STATS_QUERY = {
    "excludePublishers": "true leaves out `publishers`.",
    "excludeConsumers": "true leaves out `consumers` of each subscription.",
}


def _new_properties(properties: Properties) -> Properties:
    """Check the properties of a new topic.

    Raises:
        PreconditionFailed: they are too large, or the topic is to be a shadow topic, which is not supported.
    """
    if SHADOW_SOURCE in properties:
        raise PreconditionFailed("a topic has no shadows; links copy topics between clusters")
    return check_properties(properties)


def partitions_of(call: Call, topic: TopicName) -> list[TopicName]:
    """The topics of a name: all partitions of a partitioned one, or itself.

    Raises:
        NotFound: no such topic.
    """
    count = call.control.topics.partitions(str(topic))
    if count is None:
        raise NotFound(f"topic {topic} does not exist")
    return [topic.with_partition(number) for number in range(count)] if count else [topic]


def present(call: Call, topic: TopicName) -> list[TopicName]:
    """The existing topics of `partitions_of`: one may be lost, and those of a non-persistent topic are created by their
    first client.

    Raises:
        NotFound: no such topic.
    """
    return [part for part in partitions_of(call, topic) if call.control.topics.partitions(str(part)) is not None]


def one(call: Call, topic: TopicName, doing: str) -> TopicName:
    """A topic that is not partitioned (a partition is one).

    Raises:
        NotFound: no such topic. NotAllowed: it is partitioned.
    """
    if call.control.topics.partitions(str(topic)):
        raise NotAllowed(
            f"{doing} needs one partition, and {topic} is partitioned: name {topic.with_partition(0)} or another"
        )
    partitions_of(call, topic)
    return topic


def stored(topic: TopicName, doing: str) -> TopicName:
    """A persistent topic.

    Raises:
        NotAllowed: it stores nothing.
    """
    if not topic.persistent:
        raise NotAllowed(f"{doing} needs stored messages, and {topic} stores none")
    return topic


def whole(topic: TopicName) -> TopicName:
    """A name that a partitioned topic can have.

    Raises:
        PreconditionFailed: it is that of a partition.
    """
    if topic.partition >= 0:
        raise PreconditionFailed(f"{topic} is the name of a partition and has none itself")
    return topic


def message_id(topic: TopicName, position: Position) -> dict[str, int]:
    """A message id in Pulsar's JSON."""
    return {"ledgerId": position.ledger, "entryId": position.entry, "partitionIndex": topic.partition}


def _absent(call: Call, topic: TopicName) -> None:
    count = call.control.topics.partitions(str(topic))
    if count is not None and call.control.topics.was_deleted(str(topic)):
        return  # it was deleted here, and links made it again: asking for it lets in what was there before, see `create_topic`
    if count:
        raise Conflict(f"partitioned topic {topic} exists already")
    if count is not None:
        raise Conflict(f"topic {topic} exists already")


@topics.add(
    "GET",
    "/{tenant}/{namespace}",
    "Topics of a namespace, each partition separately.",
    errors=(404, 412),
    query=SYSTEM_QUERY | BUNDLE_QUERY,
    reply='["persistent://...", ...]',
    returns=list[str],
)
async def list_topics(call: Call) -> Any:
    """The topics of the domain in the path."""
    if (call.parameter("bundle") or WHOLE_RANGE).lower() != WHOLE_RANGE:
        raise PreconditionFailed(f"bundle can be {WHOLE_RANGE} only: {NO_BUNDLES}")
    return await _of_domain(call, call.control.topics.iterate(str(call.existing_namespace())))


async def _of_domain(call: Call, names: Iterable[str]) -> list[str]:
    system = call.flag("includeSystemTopic")
    return await call.building.names(
        name for name in names if name.startswith(f"{call.domain}://") and (system or not is_system(name))
    )


@topics.add(
    "GET",
    "/{tenant}/{namespace}/partitioned",
    "Partitioned topics of a namespace.",
    errors=(404, 412),
    query=SYSTEM_QUERY,
    reply='["persistent://...", ...]',
    returns=list[str],
)
async def list_partitioned(call: Call) -> Any:
    """The partitioned topics of the domain in the path."""
    return await _of_domain(call, call.resources.partitioned_topics(call.existing_namespace()))


@topics.add(
    "PUT",
    "/{tenant}/{namespace}/{topic}",
    "Create a topic without partitions.",
    ok=204,
    errors=(404, 409, 412),
    body=Properties,
    body_needed=False,
)
async def create_topic(call: Call) -> None:
    """The body, if any, is its properties."""
    topic = call.topic()
    properties = _new_properties(await call.body() or {})
    _absent(call, topic)
    if topic.partition >= 0:
        count = call.control.topics.partitions(str(topic.base))
        if not count:
            raise PreconditionFailed(
                f"{topic} is the name of a partition, and there is no partitioned topic {topic.base}"
            )
        if topic.partition >= count:
            raise PreconditionFailed(f"{topic.base} has {count} partitions; to have more, update it")
    await call.done(lambda done: call.control.topics.create(str(topic), None, properties, done))


@topics.add(
    "PUT",
    "/{tenant}/{namespace}/{topic}/partitions",
    "Create a partitioned topic with all its partitions.",
    ok=204,
    errors=(404, 406, 409, 412),
    query={"createLocalTopicOnly": "accepted; links create it in other clusters when they need it."},
    body=Int | NewPartitions,
)
async def create_partitioned(call: Call) -> None:
    """The body is a number, or an object with properties."""
    topic = call.topic()
    body: int | NewPartitions = await call.body()
    wanted = NewPartitions(body) if isinstance(body, int) else body
    if topic.partition >= 0:
        raise PreconditionFailed(f"{topic} is the name of a partition and cannot be partitioned itself")
    check_partitions(wanted.partitions)
    properties = _new_properties(wanted.properties)
    _absent(call, topic)
    await call.done(lambda done: call.control.topics.create(str(topic), wanted.partitions, properties, done))


@topics.add(
    "GET",
    "/{tenant}/{namespace}/{topic}/partitions",
    "Number of partitions of a topic; 0 if it is not partitioned.",
    errors=(404, 412),
    query={
        "checkAllowAutoCreation": (
            "true: a topic that its first client would create counts as one without "
            "partitions; if the policy `auto-topic-creation` makes new topics partitioned, "
            "it is created."
        )
    },
    reply='{"partitions": 4, "deleted": false}',
)
async def get_partitions(call: Call) -> Any:
    """Includes the properties of a partitioned topic."""
    topic = call.topic()
    count = call.control.topics.partitions(str(topic))
    if count is None:
        # Clients that look topics up by HTTP ask so before they open a topic.
        creates = call.resources.comes_when_opened(topic, call.info.topic_auto_creation)
        if not (call.flag("checkAllowAutoCreation") and creates):
            raise NotFound(f"topic {topic} does not exist")
        count = call.resources.new_partitions(call.existing_namespace()) if topic.partition < 0 else 0
        if count:
            wanted = count
            try:
                await call.done(lambda done: call.control.topics.create(str(topic), wanted, {}, done))
            except Conflict:  # another request was first
                count = call.control.topics.partitions(str(topic)) or 0
    properties = call.resources.partitioned_properties(topic) if count else {}
    return {"partitions": count, "deleted": False, "properties": properties}


@topics.add(
    "POST",
    "/{tenant}/{namespace}/{topic}/partitions",
    "Grow a partitioned topic; partitions never become fewer. New ones have the durable subscriptions of the first one.",
    ok=204,
    errors=(404, 409, 412, 422),
    query={"updateLocalTopicOnly": "accepted; links add the partitions in other clusters.", "force": "accepted."},
    body=Int,
)
async def update_partitions(call: Call) -> None:
    """The body is the new number. The present number creates missing partitions again."""
    topic = whole(call.topic())
    number: int = await call.body()
    count = call.control.topics.partitions(str(topic))
    if count is None:  # 409, as Pulsar
        raise Conflict(f"partitioned topic {topic} does not exist")
    if count == 0:
        raise Conflict(f"topic {topic} exists and is not partitioned")
    if not count <= number <= PARTITIONS_MAX:
        raise Unprocessable(f"{topic} has {count} partitions; their number can only grow, to {PARTITIONS_MAX} at most")
    await call.done(lambda done: call.control.topics.update_partitions(str(topic), number, done))


@topics.add(
    "POST",
    "/{tenant}/{namespace}/{topic}/createMissedPartitions",
    "Create the missing partitions of a partitioned topic.",
    ok=204,
    errors=(404, 405, 412),
)
async def create_missed_partitions(call: Call) -> None:
    """There are such only after a partition was lost; those of non-persistent topics begin when they are opened."""
    topic = stored(call.topic(), "createMissedPartitions")
    if not call.control.topics.partitions(str(topic)):
        raise NotFound(f"partitioned topic {topic} does not exist")
    missing = [part for part in partitions_of(call, topic) if call.control.topics.partitions(str(part)) is None]
    await call.each(missing, lambda part, done: call.control.topics.create(part, None, {}, done))


own_topics = Routes("Topics, beyond Pulsar", "/geo/v1", own=True)


@own_topics.add(
    "POST",
    "/persistent/{tenant}/{namespace}/{topic}/adoptPartitions",
    "Make a topic partitioned: it becomes the first partition, with its messages and subscriptions.",
    ok=204,
    errors=(404, 406, 409, 412),
    body=Int,
)
async def adopt_partitions(call: Call) -> None:
    """For a topic that is partitioned in another cluster. Its clients are disconnected, and open it again."""
    topic = whole(call.topic())
    number = check_partitions(await call.body())
    await call.done(lambda done: call.control.topics.adopt_partitions(str(topic), number, done))


DELETE_QUERY = {
    "force": (
        "true closes producers and consumers, and also deletes a topic that links send to other clusters "
        "(422 without it)."
    )
}


@topics.add(
    "DELETE",
    "/{tenant}/{namespace}/{topic}/partitions",
    "Delete a partitioned topic with all its partitions, their subscriptions, its policies and permissions, in this cluster; "
    "refused while clients use it.",
    ok=204,
    errors=(404, 409, 412, 422),
    query=DELETE_QUERY,
)
async def delete_partitioned(call: Call) -> None:
    """Links do not create it again until a client creates it here."""
    topic = whole(call.topic())
    count = call.control.topics.partitions(str(topic))
    if count is None:
        raise NotFound(f"partitioned topic {topic} does not exist")
    if count == 0:
        raise Conflict(f"topic {topic} is not partitioned: DELETE it without /partitions")
    force = call.flag("force")
    await call.done(lambda done: call.control.topics.delete(str(topic), force, done))


@topics.add(
    "DELETE",
    "/{tenant}/{namespace}/{topic}",
    "Delete a topic with its subscriptions, policies and permissions, in this cluster; refused while clients use it.",
    ok=204,
    errors=(404, 409, 412, 422),
    query=DELETE_QUERY,
)
async def delete_topic(call: Call) -> None:
    """A single partition is refused: the others would continue without it."""
    topic = call.topic()
    if call.control.topics.partitions(str(topic)):
        raise Conflict(f"{topic} is partitioned: DELETE its /partitions")
    count = call.control.topics.partitions(str(topic.base)) if topic.partition >= 0 else None
    partitions_of(call, topic)
    if count and topic.partition < count:
        raise PreconditionFailed(f"{topic} is a partition of {topic.base}: delete that with all its partitions")
    force = call.flag("force")
    await call.done(lambda done: call.control.topics.delete(str(topic), force, done))


@topics.add(
    "GET",
    "/{tenant}/{namespace}/{topic}/stats",
    "Statistics of a topic or partition.",
    errors=(404, 412),
    query=STATS_QUERY,
    reply="TopicStats",
)
async def get_stats(call: Call) -> Any:
    """For a partitioned topic use partitioned-stats."""
    topic = call.topic()
    if call.control.topics.partitions(str(topic)):
        raise NotFound(f"{topic} is partitioned: ask its partitioned-stats")
    return await _stats(call, topic)


async def _stats(call: Call, topic: TopicName) -> dict[str, Any]:
    publishers, consumers = not call.flag("excludePublishers"), not call.flag("excludeConsumers")
    return await call.building.steps(
        call.control.statistics.topic_steps(str(topic), publishers=publishers, consumers=consumers)
    )


@topics.add(
    "GET",
    "/{tenant}/{namespace}/{topic}/partitioned-stats",
    "Statistics of a partitioned topic, summed, and of each partition.",
    errors=(404, 412),
    query=STATS_QUERY | {"perPartition": "false leaves out the single partitions."},
    reply="PartitionedTopicStats",
)
async def get_partitioned_stats(call: Call) -> Any:
    """Counters are summed, of timestamps the newest counts."""
    topic = whole(call.topic())
    count = call.control.topics.partitions(str(topic))
    if not count:
        raise NotFound(f"partitioned topic {topic} does not exist")
    each = {}
    for name in partitions_of(call, topic):
        if not name.persistent or call.control.topics.partitions(str(name)) is not None:
            each[str(name)] = await _stats(call, name)
            await call.building.others()
    total = await call.building.steps(sum_in_steps(list(each.values())))
    total["metadata"] = {"partitions": count, "deleted": False}
    total["partitions"] = each if call.flag("perPartition", True) else {}
    return total


@topics.add(
    "GET",
    "/{tenant}/{namespace}/{topic}/internalStats",
    "Ledgers and cursors of a topic or partition.",
    errors=(404, 405, 412),
    query={"metadata": "accepted."},
    reply="PersistentTopicInternalStats",
)
async def get_internal_stats(call: Call) -> Any:
    """Links' cursors too."""
    topic = stored(call.topic(), "internalStats")
    if call.control.topics.partitions(str(topic)):
        raise NotFound(f"{topic} is partitioned: ask its partitioned-internalStats")
    partitions_of(call, topic)
    return await call.building.steps(call.control.statistics.internal_steps(str(topic)))


@topics.add(
    "GET",
    "/{tenant}/{namespace}/{topic}/partitioned-internalStats",
    "Ledgers and cursors of each partition of a partitioned topic.",
    errors=(404, 405, 412),
    reply='{"metadata": {"partitions": 4, "deleted": false}, "partitions": {"persistent://...": PersistentTopicInternalStats}}',
)
async def get_partitioned_internal_stats(call: Call) -> Any:
    """Links' cursors too. A partition that is missing is left out."""
    topic = stored(call.topic(), "internalStats")
    count = call.control.topics.partitions(str(topic))
    if not count:
        raise NotFound(f"partitioned topic {topic} does not exist")
    each = {}
    for name in partitions_of(call, topic):
        if call.control.topics.partitions(str(name)) is not None:
            each[str(name)] = await call.building.steps(call.control.statistics.internal_steps(str(name)))
            await call.building.others()
    return {"metadata": {"partitions": count, "deleted": False}, "partitions": each}


async def _by_partition(call: Call, topic: TopicName, tell: Callable[[str], Any]) -> dict[str, Any]:
    """A report for each existing partition; other work gets its turn in between."""
    each = {}
    for name in partitions_of(call, topic):
        if call.control.topics.partitions(str(name)) is not None:
            each[str(name)] = tell(str(name))
            await call.others()
    return each


@topics.add(
    "GET",
    "/{tenant}/{namespace}/{topic}/internal-info",
    "Stored ledgers and cursors; of a partitioned topic by partition.",
    errors=(404, 405, 412),
    query={"authoritative": "accepted."},
    reply="ManagedLedgerInfo",
)
async def get_internal_info(call: Call) -> Any:
    """Cursors as they are on disk. A partition that is missing is left out."""
    topic = stored(call.topic(), "internal-info")
    if not call.control.topics.partitions(str(topic)):
        return call.control.topics.ledger_info(str(one(call, topic, "internal-info")))
    return {"partitions": await _by_partition(call, topic, call.control.topics.ledger_info)}


@topics.add(
    "GET",
    "/{tenant}/{namespace}/{topic}/lastMessageId",
    "Id of the last message; -1:-1 if there never was one.",
    errors=(404, 405, 412),
    reply='{"ledgerId": 12, "entryId": 3, "partitionIndex": -1, "batchIndex": 9}',
)
async def get_last_message_id(call: Call) -> Any:
    """For one partition. `batchIndex` only for a message in a batch."""
    topic = one(call, stored(call.topic(), "lastMessageId"), "lastMessageId")
    index = call.control.topics.last_batch_index(str(topic))
    return message_id(topic, call.control.topics.last_message_id(str(topic))) | (
        {"batchIndex": index} if index >= 0 else {}
    )


@topics.add(
    "PUT",
    "/{tenant}/{namespace}/{topic}/unload",
    "Close the topic and its clients, and open it again from the store; clients reconnect.",
    ok=204,
    errors=(404, 412),
    query={"authoritative": "accepted."},
)
async def unload(call: Call) -> None:
    """All existing partitions; of a non-persistent topic, those with clients."""
    await call.each(present(call, call.topic()), call.control.topics.unload)


@topics.add(
    "DELETE",
    "/{tenant}/{namespace}/{topic}/truncate",
    "Acknowledge everything in every subscription and delete all ledgers that nothing else needs, except the open one.",
    ok=204,
    errors=(404, 405, 412),
)
async def truncate(call: Call) -> None:
    """All partitions. Messages that a link has not sent yet stay."""
    topic = stored(call.topic(), "truncate")
    await call.each(partitions_of(call, topic), call.control.topics.truncate)


@topics.add(
    "POST",
    "/{tenant}/{namespace}/{topic}/trim",
    "Delete now the ledgers that retention allows.",
    ok=204,
    errors=(404, 405, 412),
    query={"authoritative": "accepted."},
)
async def trim(call: Call) -> None:
    """All partitions. The ledger that is written stays, and what a subscription or a link needs."""
    topic = stored(call.topic(), "trim")
    await call.each(partitions_of(call, topic), call.control.topics.trim)


@topics.add(
    "POST",
    "/{tenant}/{namespace}/{topic}/terminate",
    "Terminate the topic; answers with the id of the last message.",
    errors=(404, 405, 412),
    reply='{"ledgerId": 12, "entryId": 3, "partitionIndex": -1}',
)
async def terminate(call: Call) -> Any:
    """One partition."""
    topic = one(call, stored(call.topic(), "terminate"), "terminate")
    position: Position | None = await call.value(lambda done: call.control.topics.terminate(str(topic), done))
    return message_id(topic, position if position is not None else Position(-1, -1))


@topics.add(
    "POST",
    "/{tenant}/{namespace}/{topic}/terminate/partitions",
    "Terminate all partitions; answers with the id of the last message of each.",
    errors=(404, 405, 412),
    reply='{"0": {"ledgerId": 12, "entryId": 3, "partitionIndex": 0}, ...}',
)
async def terminate_partitions(call: Call) -> Any:
    """One after the other: if one cannot be terminated, those before it stay terminated, and a repeated request
    continues.
    """
    topic = stored(call.topic(), "terminate")
    count = call.control.topics.partitions(str(topic))
    if count is None:
        raise NotFound(f"partitioned topic {topic} does not exist")
    if count == 0:
        raise NotAllowed(f"topic {topic} is not partitioned: POST to its /terminate")
    last: dict[str, dict[str, int]] = {}
    for part in partitions_of(call, topic):
        position: Position | None = await call.value(partial(call.control.topics.terminate, str(part)))
        last[str(part.partition)] = message_id(part, position if position is not None else Position(-1, -1))
    return last

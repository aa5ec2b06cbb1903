"""Properties of topics and subscriptions: texts that are stored with them and that the broker does not use."""

from typing import Any

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.subscriptions import ONE, having
from magnetar.admin.routes.topics import Properties, partitions_of, stored
from magnetar.metadata.errors import BadRequest
from magnetar.metadata.policies.namespace import check_properties

properties = Routes("Properties", "/admin/v2/persistent", "/admin/v2/non-persistent")

TOPIC = "/{tenant}/{namespace}/{topic}/properties"
AUTHORITATIVE = {"authoritative": "accepted."}


@properties.add(
    "GET",
    TOPIC,
    "Properties of a topic.",
    errors=(404, 405, 412),
    query=AUTHORITATIVE,
    reply='{"key": "value"}',
    returns=dict[str, str],
)
async def get_properties(call: Call) -> Any:
    """A partitioned topic has its own, and so has each of its partitions."""
    topic = call.topic()
    if call.control.topics.partitions(str(topic)):
        return call.resources.partitioned_properties(topic)
    partitions_of(call, stored(topic, "properties"))
    return call.control.topics.properties(str(topic))


@properties.add(
    "PUT",
    TOPIC,
    "Set properties of a topic; those that are not named stay.",
    ok=204,
    errors=(400, 404, 405, 412),
    query=AUTHORITATIVE,
    body=Properties,
)
async def set_properties(call: Call) -> None:
    """The properties of a partitioned topic are the same in all clusters that synchronise metadata."""
    await _change(call, check_properties(await call.body()), None)


@properties.add(
    "DELETE",
    TOPIC,
    "Forget one property of a topic.",
    ok=204,
    errors=(400, 404, 405, 412),
    query={"key": "its name."} | AUTHORITATIVE,
)
async def delete_property(call: Call) -> None:
    """One that is not there is no error."""
    key = call.parameter("key")
    if key is None:
        raise BadRequest("which property? name it with ?key=")
    await _change(call, {}, key)


async def _change(call: Call, puts: dict[str, str], delete: str | None) -> None:
    topic = call.topic()
    if call.control.topics.partitions(str(topic)):
        await call.apply(lambda: call.resources.describe_partitioned(topic, puts, delete))
        return
    partitions_of(call, stored(topic, "properties"))
    await call.done(lambda done: call.control.topics.change_properties(str(topic), puts, delete, done))


@properties.add(
    "GET",
    ONE + "/properties",
    "Properties of a subscription.",
    errors=(404, 405, 412),
    query=AUTHORITATIVE,
    reply='{"key": "value"}',
    returns=dict[str, str],
)
async def get_subscription_properties(call: Call) -> Any:
    """The properties in all partitions together."""
    found, name = having(call, "properties")
    together: dict[str, str] = {}
    for topic in found:
        together |= call.control.subscriptions.properties(str(topic), name)
    return together


@properties.add(
    "PUT",
    ONE + "/properties",
    "Replace the properties of a subscription.",
    ok=204,
    errors=(400, 404, 405, 412),
    query=AUTHORITATIVE,
    body=Properties,
)
async def set_subscription_properties(call: Call) -> None:
    """Set in every partition, in this cluster."""
    found, name = having(call, "properties")
    wanted = check_properties(await call.body())
    await call.each(found, lambda topic, done: call.control.subscriptions.set_properties(topic, name, wanted, done))

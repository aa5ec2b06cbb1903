"""Compaction of a topic: starting it, and its last result (Pulsar's paths)."""

from typing import Any

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.topics import partitions_of, stored

compaction = Routes("Compaction", "/admin/v2/persistent", "/admin/v2/non-persistent")

TOPIC = "/{tenant}/{namespace}/{topic}/compaction"


@compaction.add(
    "PUT",
    TOPIC,
    "Compact a topic up to its present end, in the background.",
    ok=204,
    errors=(404, 405, 409, 412),
    query={"authoritative": "accepted."},
)
async def trigger(call: Call) -> None:
    """All partitions of a partitioned topic."""
    for topic in partitions_of(call, stored(call.topic(), "compaction")):
        call.control.topics.compact(str(topic))


@compaction.add(
    "GET",
    TOPIC,
    "State of the last compaction since the broker's start: NOT_RUN, RUNNING, SUCCESS or ERROR.",
    errors=(404, 405, 412),
    query={"authoritative": "accepted."},
    reply='{"status": "SUCCESS", "lastError": ""}',
)
async def status(call: Call) -> Any:
    """For a partitioned topic, the worst status of its partitions."""
    found = [
        call.control.topics.compaction_status(str(topic))
        for topic in partitions_of(call, stored(call.topic(), "compaction"))
    ]
    for state in ("RUNNING", "ERROR", "NOT_RUN"):
        for one in found:
            if one["status"] == state:
                return one
    return {"status": "SUCCESS", "lastError": ""}

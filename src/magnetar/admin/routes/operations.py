"""Questions of operators before and after a cluster is down: whether it can be switched off safely, and which of
another cluster's messages it holds.
"""

from typing import Any

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.core.names import check_cluster

operations = Routes("Operations", "/geo/v1", own=True)


@operations.add(
    "GET",
    "/drain",
    "Reasons against switching this cluster off: undelivered messages, unwritten subscriptions, producers.",
    reply="DrainState",
)
async def drain(call: Call) -> Any:
    """The condition that `magnetar drain` waits for."""
    return call.control.links.drain()


@operations.add(
    "GET",
    "/held/{origin}",
    "The messages of a cluster that are held here, by topic, as runs of origin indexes.",
    errors=(412,),
    reply='[{"topic": "...", "partitions": 0, "incarnation": 7, "lives": [{"incarnation": 3, "runs": [[0, 9]], '
    '"messages": 9, "entries": 9, "bytes": 900}], "deleted": [[3, 9, 12]]}, ...]',
)
async def held(call: Call) -> Any:
    """The data that `magnetar restore` compares: requested from the peer and from the cluster itself."""
    return call.control.links.held(check_cluster(call.name("origin")))

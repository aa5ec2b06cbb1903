"""What operators ask before and after a cluster is down: is it safe to switch it off, and what does it hold of another."""

from typing import Any

from magnetar.admin.call import Call
from magnetar.admin.routing import Routes

operations = Routes("Operations", "/geo/v1", own=True)


@operations.add(
    "GET",
    "/drain",
    "What keeps this cluster from being switched off: undelivered messages, unwritten subscriptions, producers.",
    reply="DrainState",
)
async def drain(call: Call) -> Any:
    """What `magnetar drain` waits for."""
    return call.control.drain()

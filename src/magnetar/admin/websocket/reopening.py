"""Opening a producer or a consumer again that the broker closed, after an unload, a seek or a quota."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.admin.websocket.client import BrokerClient
from magnetar.core.errors import BrokerError

REOPEN_S_MIN: Final = 0.1
REOPEN_S_MAX: Final = 10.0
"""Between two attempts, twice as long each time."""


async def open_again(client: BrokerClient, attempt: Callable[[], Awaitable[None]], *, for_s: float) -> bool:
    """Try until it is open, or the connection to the broker has ended.

    Args:
        client: to the broker.
        attempt: asks the broker once; raises BrokerError when it refuses.
        for_s: seconds after which a refusal is the last one.

    Returns:
        Whether it is open; false: the connection has ended.

    Raises:
        BrokerError: the last refusal.
    """
    pause_s, began_s = REOPEN_S_MIN, asyncio.get_running_loop().time()
    while not client.ended.is_set():
        try:
            await attempt()
        except BrokerError:
            if asyncio.get_running_loop().time() - began_s > for_s:
                raise
        else:
            return True
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, REOPEN_S_MAX)
    return False

"""The cluster to which a consumer is redirected after its subscription has left this one
(`broker.failover.fencing`).
"""

from collections.abc import Callable
from typing import Final

from magnetar.broker.connection import Connection
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.versions import may_push

_TOPIC_MIGRATED: Final = 68


def redirect(
    connection: Connection,
    subscription: Subscription,
    command: pb.CommandSubscribe,
    done: Callable[[BrokerError | None], None],
    *,
    target: str,
    url: str,
    url_tls: str,
) -> None:
    """Answer a consumer-to-be with success, and send it after its subscription.

    A client too old to be sent anywhere is refused, with the address in the reason.

    Args:
        connection: the client's.
        subscription: that moved away.
        command: the client's.
        done: called with how the subscribing ended.
        target, url, url_tls: where it is now, and where clients reach that; "" where that is unknown.
    """
    if url and may_push(_TOPIC_MIGRATED, connection.handshake.protocol_version):
        connection.send(
            commands.success(command.request_id),
            *commands.consumer_migrated(command.consumer_id, url, url_tls, named=connection.remembers_migration),
        )
        done(None)
    else:
        reason = f"subscription {subscription.name} of {subscription.topic} was moved to cluster {target}"
        done(BrokerError(ErrorCode.NOT_ALLOWED, f"{reason}: connect to {url or 'it'}"))

"""The answer to a command that breaks a limit (`wire.limits`): the error that its client waits for. The connection
stays open.
"""

from collections.abc import Callable
from typing import Final

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import request_id_of
from magnetar.wire.frames import Refused

_REFUSALS: Final[dict[int, Callable[[int, ErrorCode, str], bytes]]] = {
    pb.PARTITIONED_METADATA: commands.partitions_failed,
    pb.LOOKUP: commands.lookup_failed,
    pb.CONSUMER_STATS: commands.consumer_stats_failed,
    pb.GET_SCHEMA: commands.get_schema_failed,
    pb.GET_OR_CREATE_SCHEMA: commands.get_or_create_schema_failed,
}
"""Command -> its answer when it is refused; ERROR for others."""


def over_limit(frame: Refused) -> BrokerError:
    """The error."""
    return BrokerError(ErrorCode.NOT_ALLOWED, f"the command is refused: {frame.reason}")


def refusal(frame: Refused) -> bytes:
    """The answer: of the kind that the command has, else ERROR."""
    command: pb.BaseCommand = frame.command
    error, request_id = over_limit(frame), request_id_of(command)
    if command.type == pb.ACK:
        return commands.ack_response(command.ack.consumer_id, request_id, error.code, error.message)
    make = _REFUSALS.get(command.type, commands.error)
    return make(request_id, error.code, error.message)

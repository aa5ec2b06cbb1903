"""Answers to commands that are refused, for whatever reason: the error that the client of each command waits for. The connection
stays open.
"""

from collections.abc import Callable
from typing import Any, Final

from magnetar.broker.publish.publishing import NO_TRANSACTIONS
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import request_id_of
from magnetar.wire.frame import Refused
from magnetar.wire.frames import encode

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
    """The answer to a command that breaks a limit."""
    return refused(frame.command, over_limit(frame))


def refused(command: pb.BaseCommand, error: BrokerError) -> bytes:
    """The answer to a command that is refused: of the kind that the command has, else ERROR."""
    request_id = request_id_of(command)
    if command.type == pb.ACK:
        return commands.ack_response(command.ack.consumer_id, request_id, error.code, error.message)
    make = _REFUSALS.get(command.type, commands.error)
    return make(request_id, error.code, error.message)


def in_look_up(error: BrokerError) -> ErrorCode:
    """The code of a refusal in the answer to a look-up. When it says ServiceNotReady, Java's client and the C++ client close the
    connection, with all that others have on it; after MetadataError, which Pulsar says here of what is on its way out, they try
    again.
    """
    return ErrorCode.METADATA if error.code is ErrorCode.SERVICE_NOT_READY else error.code


TRANSACTIONS: Final = (
    pb.NEW_TXN,
    pb.ADD_PARTITION_TO_TXN,
    pb.ADD_SUBSCRIPTION_TO_TXN,
    pb.END_TXN,
    pb.END_TXN_ON_PARTITION,
    pb.END_TXN_ON_SUBSCRIPTION,
    pb.TC_CLIENT_CONNECT_REQUEST,
)
"""Requests about transactions, which are not supported."""

_FIELDS: Final = pb.BaseCommand.DESCRIPTOR.fields_by_number


def transaction_refused(command: pb.BaseCommand) -> bytes:
    """The answer to a request about transactions; its type is the next one."""
    answer = pb.BaseCommand(type=command.type + 1)
    asked: Any = getattr(command, _FIELDS[command.type].name)
    response: Any = getattr(answer, _FIELDS[answer.type].name)
    response.request_id, response.error, response.message = (
        asked.request_id,
        ErrorCode.NOT_ALLOWED,
        NO_TRANSACTIONS,
    )
    # Java's client finds the waiting caller by the coordinator's number, which is the upper half of a transaction's
    # id, and closes the connection if it finds none.
    if command.type == pb.NEW_TXN:
        response.txnid_most_bits = asked.tc_id
    elif command.type != pb.TC_CLIENT_CONNECT_REQUEST:
        response.txnid_most_bits, response.txnid_least_bits = asked.txnid_most_bits, asked.txnid_least_bits
    return encode(answer)

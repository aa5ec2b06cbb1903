"""Commands of a connection, each with the bytes after it: the results of `wire.frames`.

These classes have a module of their own because mypyc compiles `wire.frames`, and cannot compile subclasses of a named tuple.
"""

from operator import itemgetter
from typing import Final, NamedTuple

from magnetar.wire import pulsar_pb2 as pb


class Frame(NamedTuple):
    """One command and the bytes after it (b"" if there are none)."""

    command: pb.BaseCommand
    payload: bytes

    @property
    def send(self) -> "pb.CommandSend | PlainSend":
        """The fields of a SEND."""
        return self.command.send


class PlainSend(Frame):
    """A plain SEND (`wire.plain_sends`): it was not decoded. Its fields have the names and meanings of `CommandSend`.

    As a tuple it is None (for the command), the payload, the producer id and the sequence id.
    """

    __slots__ = ()

    producer_id: int = property(itemgetter(2))  # type: ignore[assignment]
    sequence_id: int = property(itemgetter(3))  # type: ignore[assignment]
    num_messages: Final = 1
    highest_sequence_id: Final = 0
    marker: Final = False

    @property
    def command(self) -> pb.BaseCommand:
        """The command as the usual decoder gives it, made when it is asked for."""
        send = pb.CommandSend(producer_id=self.producer_id, sequence_id=self.sequence_id)
        return pb.BaseCommand(type=pb.SEND, send=send)

    @property
    def send(self) -> "pb.CommandSend | PlainSend":
        """See `Frame`."""
        return self


class Refused(Frame):
    """A command that breaks a limit: there are its type and the numbers that its answer needs; the payload is the reason."""

    __slots__ = ()

    @property
    def reason(self) -> str:
        """The limit that was broken."""
        return self.payload.decode()

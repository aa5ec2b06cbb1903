"""The commands of one connection that watch lists of topics (PIP-145).

A second request with a watcher id in use is answered with the present list, and replaces the first one: clients that
lost an answer, or want to be sure, repeat the request (`supports_topic_watcher_reconcile`).
"""

from functools import partial

from magnetar.broker.catalog.watches import Asked, Watcher
from magnetar.broker.connection import Connection
from magnetar.broker.session.names import namespace_name
from magnetar.broker.session.services import SessionServices
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb


class SessionWatchers:
    """Watchers of one connection.

    Args:
        connection: the connection.
        services: the services of sessions.
    """

    def __init__(self, connection: Connection, services: SessionServices) -> None:
        self._connection = connection
        self._services = services
        self._watches = services.watches
        self._open: dict[int, Watcher] = {}
        self._opening: dict[Asked, int] = {}
        """Requests that are not answered yet, with their ids."""

    def watch(self, command: pb.CommandWatchTopicList) -> None:
        """WATCH_TOPIC_LIST."""
        number = command.watcher_id
        try:
            namespace = namespace_name(command.namespace)
            self._check_room(number)
        except BrokerError as error:
            self._connection.refuse(command.request_id, error)
            return
        asked = Asked(
            self._connection, number, namespace, command.topics_pattern, partial(self._answered, command.topics_hash)
        )
        self._opening[asked] = command.request_id
        self._watches.ask(asked)

    def _answered(self, known: str, asked: Asked, watcher: Watcher | None, error: BrokerError | None) -> None:
        request_id = self._opening.pop(asked)
        if watcher is not None:
            self._opened(request_id, watcher, known)
        elif error is not None:
            self._connection.refuse(request_id, error)

    def _check_room(self, number: int) -> None:
        """Refuse one watcher too many; those on their way count."""
        most = self._services.context.config.topic_watchers_per_connection_max
        if len(self._open) - (number in self._open) + len(self._opening) >= most:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED,
                f"{most} watchers are the most on one connection (topic_watchers_per_connection_max)",
            )

    def _opened(self, request_id: int, watcher: Watcher, known: str) -> None:
        """Answer with the list, unless the client has it already, as its hash says."""
        found = watcher.found
        names = [] if known == found.hash else found.names
        answer = commands.watch_topic_list_success(request_id, watcher.number, names, found.hash)
        if len(answer) > self._services.frame_bytes_max:
            self._watches.unwatch(watcher)
            reason = f"{len(names)} topics match: more than fit into one answer"
            self._connection.refuse(request_id, BrokerError(ErrorCode.NOT_ALLOWED, reason))
            return
        before = self._open.get(watcher.number)
        if before is not None:
            self._watches.unwatch(before)
        self._open[watcher.number] = watcher
        self._connection.send(answer)

    def close(self, command: pb.CommandWatchTopicListClose) -> None:
        """WATCH_TOPIC_LIST_CLOSE. A number that is not open is closed, too."""
        for asked in [one for one in self._opening if one.number == command.watcher_id]:
            asked.closed = True
            self._connection.refuse_closed(self._opening.pop(asked), "the watcher")
        watcher = self._open.pop(command.watcher_id, None)
        if watcher is not None:
            self._watches.unwatch(watcher)
        self._connection.send(commands.success(command.request_id))

    def set_writable(self, writable: bool) -> None:
        """The socket takes no more, or takes more again."""
        if writable:
            for watcher in self._open.values():
                self._watches.resume(watcher)

    def permissions_changed(self) -> None:
        """Permissions changed: topics that this client may no longer see are removed from its lists, and topics that it
        may see now are added.
        """
        for watcher in self._open.values():
            self._watches.doubt(watcher)
        for asked in self._opening:
            asked.again = True

    def disconnected(self) -> None:
        """The connection is gone."""
        for watcher in self._open.values():
            self._watches.unwatch(watcher)
        self._open.clear()
        for asked in self._opening:
            asked.closed = True
        self._opening.clear()

"""A reader whose messages take effect together with its position.

    read some messages -> one transaction of the user's database: handle each, write the last one's position -> commit
    start, or after a failure: continue after the written position, batch index included

A kill before the commit leaves nothing of these messages, one after it leaves all: none is processed twice or left out.
What `handle` does outside of that transaction (a mail, a request) is not covered.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from magnetar.client.progress import (
    NAME_CHARACTERS_MAX,
    START,
    TABLE,
    TOPIC_CHARACTERS_MAX,
    Connection,
    Engine,
    Progress,
    ReadPosition,
)
from magnetar.core.errors import MagnetarError

if TYPE_CHECKING:
    import pulsar

WAIT_MS: Final = 200
"""A wait for the next message, after which it is asked whether to stop."""

MORE_MS: Final = 1
"""A wait for one more message of a transaction that has some: it only takes what is there."""

Handle = Callable[[Connection, Any], None]


class TransactionalReader:
    """Reads one topic (or one partition), each message once.

    Args:
        client: the official client, connected to the cluster. Positions are valid in one cluster: its message ids mean
            nothing to another.
        topic: a topic without partitions, or one partition.
        engine: engine of the user's database (SQLAlchemy). SQLite, PostgreSQL: any with transactions.
        name: name of this reader; with the topic it is the key of its position.
        start: start if there is no position yet; there is one from the first commit on.
        messages_max: most messages in one transaction; fewer if no more have arrived.
        table: table of the positions.

    Raises:
        MagnetarError: a name that is too long, or a topic with partitions.
    """

    def __init__(
        self,
        client: "pulsar.Client",
        topic: str,
        engine: Engine,
        *,
        name: str,
        start: Literal["earliest", "latest"] = "earliest",
        messages_max: int = 100,
        table: str = TABLE,
    ) -> None:
        if not 1 <= len(name) <= NAME_CHARACTERS_MAX or len(topic) > TOPIC_CHARACTERS_MAX:
            raise MagnetarError(
                f"a reader's name has 1 to {NAME_CHARACTERS_MAX} characters, its topic at most {TOPIC_CHARACTERS_MAX}: "
                f"{name[:40]!a} of {topic[:40]!a}"
            )
        if messages_max < 1:
            raise MagnetarError(f"messages_max is {messages_max}: a transaction has at least one message")
        if start not in {"earliest", "latest"}:
            raise MagnetarError(f"start is {start!r}: it is 'earliest' or 'latest'")
        partitions = list(client.get_topic_partitions(topic))
        if len(partitions) > 1 or partitions[0].endswith("-partition-0") > topic.endswith("-partition-0"):
            raise MagnetarError(f"{topic} has {len(partitions)} partitions: use a reader for each, {partitions[0]} ...")
        self.position = START
        self._client, self._topic, self._name, self._engine = client, topic, name, engine
        self._start, self._max = start, messages_max
        self._progress = Progress(engine, table)
        self._reader: Any = None

    def run(
        self,
        handle: Handle,
        *,
        idle_ms: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> int:
        """Process messages until there is a reason to stop.

        Args:
            handle: called with the transaction's connection and the message; an exception rolls the transaction back
                and ends the run. Running again continues after the last commit.
            idle_ms: end after this time without a message; None: wait for ever.
            stop: called between transactions and while waiting; True ends the run.

        Returns:
            Messages processed.

        Raises:
            Displaced: another process uses the name.
        """
        count = 0
        while not stop():
            messages = self._next(idle_ms, stop)
            if not messages:
                return count
            last = _position(messages[-1])
            try:
                with self._engine.begin() as connection:
                    for message in messages:
                        handle(connection, message)
                    self._progress.move(connection, self._name, self._topic, self.position, last, len(messages))
            except BaseException:
                # Messages that were read and not committed have to be read again.
                self.close()
                raise
            self.position = last
            count += len(messages)
        return count

    def close(self) -> None:
        """Close the underlying reader; `run` opens it again."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    # --------------------------------------------------------------------------------------------------------- reading

    def _open(self) -> Any:
        import pulsar

        self.position = self._progress.begin(self._name, self._topic)
        if self.position != START:
            identity = pulsar.MessageId(-1, *self.position)
        else:
            identity = pulsar.MessageId.earliest if self._start == "earliest" else pulsar.MessageId.latest
        return self._client.create_reader(self._topic, identity, reader_name=self._name)

    def _next(self, idle_ms: int | None, stop: Callable[[], bool]) -> list[Any]:
        """Some messages, at least one; none when it is time to end."""
        if self._reader is None:
            self._reader = self._open()
        messages: list[Any] = []
        waited = 0
        last = self.position
        while len(messages) < self._max:
            message = self._read(MORE_MS if messages else WAIT_MS)
            if message is None:
                waited += WAIT_MS
                if messages or stop() or (idle_ms is not None and waited >= idle_ms):
                    break
                continue
            # Clients may hand out a message again around a reconnect, and the earlier ones of a batch at the start.
            if _position(message) > last:
                last = _position(message)
                messages.append(message)
        return messages

    def _read(self, wait_ms: int) -> Any:
        import pulsar

        try:
            return self._reader.read_next(wait_ms)
        except pulsar.Timeout:
            return None


def _position(message: Any) -> ReadPosition:
    identity = message.message_id()
    return ReadPosition(identity.ledger_id(), identity.entry_id(), identity.batch_index())

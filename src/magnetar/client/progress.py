"""The position of a reader, as a row of the user's database, written in the same transaction as the effects of its
messages.

Each write names the position that the row should have before it. If two processes run under one name by mistake, the
second to commit finds another position in the row, and its whole transaction is rolled back.
"""

from typing import Final, NamedTuple

from magnetar.core.errors import MagnetarError

try:
    from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, insert, inspect, select, update
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.exc import DBAPIError, IntegrityError
except ImportError as error:  # pragma: no cover - the extra is installed where tests run
    raise MagnetarError("magnetar.client needs SQLAlchemy: install magnetar with its extra 'client'") from error

__all__ = [
    "NAME_CHARACTERS_MAX",
    "START",
    "TABLE",
    "TOPIC_CHARACTERS_MAX",
    "Connection",
    "Displaced",
    "Engine",
    "Progress",
    "ReadPosition",
]

TABLE: Final = "magnetar_progress"

NAME_CHARACTERS_MAX: Final = 200
"""The longest name of a reader; with the topic it is the row's key, and databases limit the size of keys."""

TOPIC_CHARACTERS_MAX: Final = 500


class Displaced(MagnetarError):
    """Another process reads under the same name: it committed first, and nothing of this transaction was kept."""


class ReadPosition(NamedTuple):
    """A message of one topic, in this topic's order.

    Attributes:
        ledger, entry: of its message id; -1 before the first message.
        batch_index: within its batch; -1 outside of any.
    """

    ledger: int
    entry: int
    batch_index: int


START: Final = ReadPosition(-1, -1, -1)


class Progress:
    """The table of positions.

    Args:
        engine: the engine of the user's database.
        table: its name there; created if it is missing.
    """

    def __init__(self, engine: Engine, table: str = TABLE) -> None:
        self._engine = engine
        self._table = Table(
            table,
            MetaData(),
            Column("reader", String(NAME_CHARACTERS_MAX), primary_key=True),
            Column("topic", String(TOPIC_CHARACTERS_MAX), primary_key=True),
            Column("ledger", BigInteger, nullable=False),
            Column("entry", BigInteger, nullable=False),
            Column("batch_index", Integer, nullable=False),
            Column("messages", BigInteger, nullable=False),
        )

    def begin(self, name: str, topic: str) -> ReadPosition:
        """The position of a reader; its row exists afterwards."""
        columns = self._table.c
        own = (columns.reader == name, columns.topic == topic)
        query = select(columns.ledger, columns.entry, columns.batch_index).where(*own)
        self._create()
        with self._engine.begin() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            values = {"reader": name, "topic": topic, "messages": 0, **START._asdict()}
            try:
                with self._engine.begin() as connection:
                    connection.execute(insert(self._table).values(values))
            except IntegrityError:
                pass  # another process made it in this moment
            with self._engine.begin() as connection:
                row = connection.execute(query).one()
        return ReadPosition(*row)

    def _create(self) -> None:
        try:
            self._table.metadata.create_all(self._engine)
        except DBAPIError:
            # Two processes that start together: one of them makes it.
            if not inspect(self._engine).has_table(self._table.name):
                raise

    def move(
        self, connection: Connection, name: str, topic: str, before: ReadPosition, after: ReadPosition, messages: int
    ) -> None:
        """Write a new position, in the caller's transaction.

        Args:
            connection: with the transaction.
            name, topic: the reader and its topic.
            before: the position that the row must have.
            after: the position of the last message processed.
            messages: number of messages processed.

        Raises:
            Displaced: the row has another position; the caller's transaction must be rolled back.
        """
        columns = self._table.c
        done = connection.execute(
            update(self._table)
            .where(
                columns.reader == name,
                columns.topic == topic,
                columns.ledger == before.ledger,
                columns.entry == before.entry,
                columns.batch_index == before.batch_index,
            )
            .values(messages=columns.messages + messages, **after._asdict())
        )
        if done.rowcount != 1:
            raise Displaced(
                f"reader {name!r} of {topic} is no longer at {tuple(before)}: another process uses its name"
            )

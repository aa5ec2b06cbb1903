"""A reader for programs that process each message exactly once, together with changes of their own database.

    engine = sqlalchemy.create_engine("sqlite:///orders.db")
    reader = TransactionalReader(client, "persistent://public/default/orders", engine, name="billing")
    reader.run(handle)          # handle(connection, message): in one transaction with the reader's position

Needs SQLAlchemy and the official client: the extra `client` of this package.
"""

from magnetar.client.progress import Displaced, ReadPosition
from magnetar.client.reader import TransactionalReader

__all__ = ["Displaced", "ReadPosition", "TransactionalReader"]

"""The errors of a client of ledgers. Each message is one line that says what is wrong, and with which ledger or server."""


class BookKeeperError(Exception):
    """Something that BookKeeper or ZooKeeper did not do."""


class ZooKeeperError(BookKeeperError):
    """ZooKeeper does not answer, or what it has is not a BookKeeper cluster that this client knows."""


class NoSuchLedger(BookKeeperError):
    """There is no ledger with this id, or it was deleted."""


class TooFewBookies(BookKeeperError):
    """Too few bookies are registered or can be reached."""


class LedgerFenced(BookKeeperError):
    """Another client recovers the ledger, or has recovered it. Entries that are not confirmed may exist or not."""


class LedgerRefused(BookKeeperError):
    """The password or digest is not that of the ledger."""


class NotWritable(BookKeeperError):
    """The ledger takes no entries any longer; the entry was not sent."""


class TooMuchUnconfirmed(BookKeeperError):
    """The writer has as many entries under way as it may have; the entry was not sent. `WritableLedger.room` waits."""


class EntryUnreadable(BookKeeperError):
    """An entry cannot be read from any bookie that should have it, at least not now."""


class EntryLost(EntryUnreadable):
    """All bookies that should have an entry have answered, and none has a whole copy of it."""


class RecoveryFailed(BookKeeperError):
    """A ledger could not be recovered now, for example because bookies do not answer. A later attempt may succeed."""


class AuthenticationRefused(BookKeeperError):
    """A server did not prove who it is, or wants another authentication than this client has."""

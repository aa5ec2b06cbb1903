"""One number for everything that exists in a cluster: clusters with equal digests have equal metadata."""

from magnetar.metadata.sync.records import DIGEST_MODULUS, Record, encoded, print_of


class Digest:
    """The sum of the fingerprints of all records that exist, kept up to date record by record.

    Attributes:
        value: the sum, modulo `DIGEST_MODULUS`.
        count: how many records are in it.
    """

    def __init__(self) -> None:
        self.value = 0
        self.count = 0
        self._encoded: dict[str, tuple[Record, bytes]] = {}

    def add(self, path: str, record: Record) -> None:
        """A document exists."""
        self.value = (self.value + print_of(path, self.encoded(path, record))) % DIGEST_MODULUS
        self.count += 1

    def remove(self, path: str, record: Record) -> None:
        """A document has another record now, or none."""
        self.value = (self.value - print_of(path, self.encoded(path, record))) % DIGEST_MODULUS
        self.count -= 1

    def fingerprint(self, path: str, record: Record) -> str:
        """One record's part of the sum, in hexadecimal."""
        return f"{print_of(path, self.encoded(path, record)):016x}"

    def encoded(self, path: str, record: Record) -> bytes:
        """A record as it travels. It is kept: the next snapshot needs it again, and must not hold the broker up."""
        kept = self._encoded.get(path)
        if kept is None or kept[0] is not record:
            kept = self._encoded[path] = (record, encoded(record))
        return kept[1]

    def forget(self, path: str) -> None:
        """Remove a document that has no record."""
        self._encoded.pop(path, None)

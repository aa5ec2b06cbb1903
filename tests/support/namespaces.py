"""A namespace of one test, and requests about it."""

import uuid
from typing import Any

from tests.support.brokers import BrokerProcess


class Space:
    """A namespace of one test, and requests about it.

    Args:
        broker: the shared one.
    """

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.name = f"public/p-{uuid.uuid4().hex[:12]}"
        broker.rest("PUT", f"/admin/v2/namespaces/{self.name}")

    def topic(self, local: str = "t") -> str:
        """A topic's full name."""
        return f"persistent://{self.name}/{local}"

    def set(self, path: str, value: Any, topic: str = "", root: str = "/admin/v2") -> None:
        """Set a policy of the namespace, or of a topic."""
        self.broker.rest("POST", self._path(path, topic, root), value)

    def unset(self, path: str, topic: str = "", root: str = "/admin/v2") -> None:
        """Take one back."""
        self.broker.rest("DELETE", self._path(path, topic, root))

    def get(self, path: str, topic: str = "") -> Any:
        """What is set, or holds."""
        return self.broker.rest("GET", self._path(path, topic, "/admin/v2"))

    def _path(self, path: str, topic: str, root: str) -> str:
        return f"{root}/persistent/{self.name}/{topic}/{path}" if topic else f"{root}/namespaces/{self.name}/{path}"

    def stats(self, topic: str = "t") -> Any:
        """A topic's statistics."""
        return self.broker.rest("GET", f"/admin/v2/persistent/{self.name}/{topic}/stats")

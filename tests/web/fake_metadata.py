"""The fake broker's part in synchronised metadata, and its cases for the table of `test_rest`."""

from collections.abc import Callable, Mapping
from typing import Any

from magnetar.broker.admin.metadata import OFF, policy_fields
from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName
from magnetar.metadata.errors import NotFound, PreconditionFailed
from magnetar.metadata.keys import namespace_key
from magnetar.metadata.resources import Resources
from magnetar.metadata.sync.preview import preview

Done = Callable[[MagnetarError | None], None]


class FakeMetadata:
    """`MetadataControl` in memory; one document is synchronised, the path `off` stands for a broker where it is off."""

    resources: Resources
    synchronised = True

    def _soon(self, done: Done, act: Callable[[], None] = lambda: None) -> None:
        raise NotImplementedError

    def _on(self) -> None:
        if not self.synchronised:
            raise PreconditionFailed(OFF)

    def metadata(self) -> dict[str, Any]:
        return {"enabled": self.synchronised, "digest": "00" * 8, "documents": 1, "clusters": {}}

    def metadata_fingerprints(self) -> dict[str, Any]:
        self._on()
        return {"documents": {"tenants/public": "00" * 8}, "exclude": []}

    def metadata_document(self, path: str) -> list[dict[str, Any]]:
        self._on()
        if path == "off":
            raise PreconditionFailed(OFF)
        if path != "tenants/public":
            raise NotFound(f"there is no document {path!a}")
        return [{"field": "adminRoles", "value": [], "set_by": "us-west", "set_ms": 1}]

    def metadata_preview(self, namespace: str, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        name = NamespaceName.parse(namespace)
        key = namespace_key(name)
        after = self.resources.change_policies(name, **policy_fields(self.resources.policies(name), fields)).puts[key]
        return [change._asdict() for change in preview(key, self.resources.document(key), after, None)]

    def metadata_snapshot(self, done: Done) -> None:
        self._on()
        self._soon(done)


M = "/geo/v1/metadata"
N = "/geo/v1/namespaces"

CASES: list[tuple[str, str, str | None, int]] = [
    ("GET", M, None, 200),
    ("GET", f"{M}/fingerprints", None, 200),
    ("GET", f"{M}/document?path=tenants/public", None, 200),
    ("GET", f"{M}/document", None, 400),
    ("GET", f"{M}/document?path=tenants/no", None, 404),
    ("GET", f"{M}/document?path=off", None, 412),
    ("POST", f"{M}/snapshot", None, 204),
    ("POST", f"{N}/public/default/preview", '{"set": {"message_ttl_in_seconds": 5}}', 200),
    ("POST", f"{N}/public/default/preview", '{"unset": ["retention_policies"]}', 200),
    ("POST", f"{N}/public/default/preview", '{"set": {"message_ttl_in_seconds": "long"}}', 400),
    ("POST", f"{N}/public/default/preview", '{"unset": ["colour"]}', 400),
    ("POST", f"{N}/public/default/preview", '{"set": {"replication_clusters": ["nowhere"]}}', 403),
    ("POST", f"{N}/acme/peers/preview", '{"set": {"replication_clusters": ["us-west", "us-east"]}}', 409),
    ("POST", f"{N}/public/missing/preview", "{}", 404),
    ("POST", f"{N}/public/default%00/preview", "{}", 412),
]

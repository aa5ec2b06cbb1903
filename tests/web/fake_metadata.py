"""The fake broker's part in synchronised metadata, and its cases for the table of `test_rest`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from magnetar.broker.admin.metadata import OFF, MetadataControl, policy_fields
from magnetar.broker.context import Done
from magnetar.core.names import NamespaceName
from magnetar.metadata.errors import NotFound, PreconditionFailed
from magnetar.metadata.keys import namespace_key
from magnetar.metadata.sync.preview import preview

if TYPE_CHECKING:
    from tests.web.fake_control import FakeControl


class FakeMetadata(MetadataControl):
    """`MetadataControl` in memory; one document is synchronised, the path `off` stands for a broker where it is off."""

    synchronised = True

    def __init__(self, fake: "FakeControl") -> None:
        self._fake = fake

    def _on(self) -> None:
        if not self.synchronised:
            raise PreconditionFailed(OFF)

    def state(self) -> dict[str, Any]:
        return {"enabled": self.synchronised, "digest": "00" * 8, "documents": 1, "clusters": {}}

    def fingerprints(self) -> dict[str, Any]:
        self._on()
        return {"documents": {"tenants/public": "00" * 8}, "exclude": []}

    def document(self, path: str) -> list[dict[str, Any]]:
        self._on()
        if path == "off":
            raise PreconditionFailed(OFF)
        if path != "tenants/public":
            raise NotFound(f"there is no document {path!a}")
        return [{"field": "adminRoles", "value": [], "set_by": "us-west", "set_ms": 1}]

    def preview(self, namespace: str, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        name = NamespaceName.parse(namespace)
        key = namespace_key(name)
        after = self._fake.resources.change_policies(
            name, **policy_fields(self._fake.resources.policies(name), fields)
        ).puts[key]
        return [change._asdict() for change in preview(key, self._fake.resources.document(key), after, None)]

    def snapshot(self, done: Done) -> None:
        self._on()
        self._fake.soon(done)


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

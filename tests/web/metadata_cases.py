"""Cases of synchronised metadata, for the table of `test_rest`."""

M = "/geo/v1/metadata"
N = "/geo/v1/namespaces"

CASES: list[tuple[str, str, str | None, int]] = [
    ("GET", M, None, 200),
    ("GET", f"{M}/fingerprints", None, 200),
    ("GET", f"{M}/document?path=tenants/public", None, 200),
    ("GET", f"{M}/document", None, 400),
    ("GET", f"{M}/document?path=tenants/no", None, 404),
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

OFF_CASES: list[tuple[str, str, str | None, int]] = [
    ("GET", f"{M}/fingerprints", None, 412),
    ("GET", f"{M}/document?path=tenants/public", None, 412),
    ("POST", f"{M}/snapshot", None, 412),
]
"""Where nothing is synchronised."""

"""The sources of the product and of its simulator, as the tests of the structure read them."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "magnetar"
SIMULATOR = ROOT / "simulator" / "src" / "magnetar_sim"
PACKAGES = (PACKAGE, SIMULATOR)

GROUPS = (
    ("bookkeeper",),
    ("core",),
    ("wire", "storage"),
    ("schemas", "metadata", "effects"),
    ("replication",),
    ("broker",),
    ("runtime",),
    ("spark_session",),
    ("spark",),
    ("pipeline",),
    ("admin",),
    ("jobs",),
    ("app",),
    ("cli", "client", "__main__"),
    ("magnetar_sim",),
)
"""Packages from left to right: a module imports from its own group and from those to the left."""

RANKS = (
    {
        "context",
        "client_bytes",
        "connection",
        "security",
        "statistics.cardinality",
        "statistics.link_flow",
        "statistics.latency",
        "statistics.constant_fields",
    },
    {"publish", "subscriptions"},
    {"topics", "clients", "publish.publishing", "publish.deduplication_policy", "publish.idempotency.policy"},
    {"nonpersistent", "links", "replicated_subscriptions", "failover", "metadata_sync"},
    {"catalog"},
    {"statistics"},
    {"session"},
    {"broker", "waiting"},
    {"admin"},
)
"""Rooms of `broker/`, from left to right; the longest name that fits a module counts."""


@cache
def modules() -> dict[str, ast.Module]:
    """Name of a module -> its tree; the generated one is left out."""
    found = {}
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            if not path.name.endswith("_pb2.py"):
                parts = path.relative_to(package.parent).with_suffix("").parts
                found[".".join(part for part in parts if part != "__init__")] = ast.parse(path.read_text())
    return found

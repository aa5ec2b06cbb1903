"""Figures of synchronised metadata: how long until a change is the same everywhere, and until a new cluster knows everything.

    python -m bench.metadata [--quick]

Three real brokers and the real pipeline on this machine's processors. "Everywhere" is when all clusters show the same digest
and so many documents; it is looked for every 50 ms.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.brokers import BrokerProcess, World, eventually

from bench.measuring import Admin, clusters
from bench.results import Figure, store

ON = '[metadata]\nmetadata_sync_topic = "persistent://pulsar/system/metadata-sync"\n'
TENANT = "bench"


def states(brokers: Iterable[BrokerProcess]) -> list[dict[str, Any]]:
    """What each says of itself."""
    return [broker.rest("GET", "/geo/v1/metadata") for broker in brokers]


def same(brokers: Iterable[BrokerProcess], documents: int) -> bool:
    """Whether all have the same, and at least so much."""
    seen = states(brokers)
    return len({one["digest"] for one in seen}) == 1 and all(one["documents"] >= documents for one in seen)


def make(broker: BrokerProcess, first: int, count: int) -> float:
    """Make so many namespaces; the seconds that it took."""
    admin, began = Admin(broker), time.monotonic()
    for number in range(first, first + count):
        body = {"replication_clusters": ["a", "b", "c"], "message_ttl_in_seconds": number}
        admin.ask("PUT", f"/admin/v2/namespaces/{TENANT}/n{number}", body)
    return time.monotonic() - began


def changed(broker: BrokerProcess, count: int) -> float:
    """Change a policy of so many namespaces; the seconds that it took."""
    admin, began = Admin(broker), time.monotonic()
    for number in range(count):
        admin.ask("POST", f"/admin/v2/namespaces/{TENANT}/n{number}/messageTTL", 1_000_000 + number)
    return time.monotonic() - began


def last_is_changed(brokers: Iterable[BrokerProcess], count: int) -> bool:
    """Whether the last of the changes is in force everywhere."""
    path = f"/admin/v2/namespaces/{TENANT}/n{count - 1}/messageTTL"
    return all(broker.rest("GET", path) == 1_000_000 + count - 1 for broker in brokers)


def measure(world: World, count: int, many: int) -> list[Figure]:
    """All figures."""
    a, b, c = (world[name] for name in "abc")
    a.rest("PUT", f"/admin/v2/tenants/{TENANT}", {"allowedClusters": ["a", "b", "c"], "adminRoles": []})
    eventually(lambda: same((a, b, c), 8), within_s=120)
    began = time.monotonic()
    asked_s = make(a, 0, count)
    eventually(lambda: same((a, b, c), 8 + count), within_s=120, every_s=0.05)
    made_s = time.monotonic() - began
    began = time.monotonic()
    edited_s = changed(a, count)
    eventually(lambda: last_is_changed((b, c), count) and same((a, b, c), 8 + count), within_s=120, every_s=0.05)
    everywhere_s = time.monotonic() - began
    make(a, count, many - count)
    eventually(lambda: same((a, b, c), 8 + many), within_s=240)
    c.kill()
    shutil.rmtree(Path(world.folder) / "data" / "c")
    began = time.monotonic()
    c.start()
    started_s = time.monotonic() - began
    eventually(lambda: same((a, b, c), 8 + many), within_s=240, every_s=0.05)
    joined_s = time.monotonic() - began
    return [
        Figure(
            f"{count:,} new namespaces in one cluster are in all three",
            made_s,
            "s",
            "< 10",
            {"the requests alone took s": round(asked_s, 2), "behind the last request s": round(made_s - asked_s, 2)},
        ),
        Figure(
            f"{count:,} namespaces changed in one cluster are the same everywhere",
            everywhere_s,
            "s",
            "< 10",
            {
                "the requests alone took s": round(edited_s, 2),
                "behind the last request s": round(everywhere_s - edited_s, 2),
            },
        ),
        Figure(
            f"an emptied cluster has all {many:,} namespaces",
            joined_s,
            "s",
            "< 30",
            {"of which its start s": round(started_s, 2), "events": states([c])[0]["counters"]},
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.metadata", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the namespaces")
    given = parser.parse_args(arguments)
    count, many = (100, 1_000) if given.quick else (1_000, 10_000)
    with clusters("abc", ON) as (world, _):
        figures = measure(world, count, many)
    store("metadata", figures, sys.argv)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

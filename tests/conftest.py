"""What all tests share: their order, how long they may take, and Hypothesis profiles."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from magnetar import FORM
from magnetar.runtime.interpreter.compiled import COMPILED
from tests.support.forms import PURE, refuse_patches
from tests.support.machine import Taken
from tests.support.patience import PATIENCE

ORDER = ("unit", "property", "golden", "scenarios", "sim", "spark", "replication", "e2e", "peers", "clients", "web")
"""Fast ones first: a broken codec should be known before Spark has started. Small files come last, so that all processes end at
about the same time."""

LONG = (
    "sim/test_exact_worlds.py",
    "spark/spark/kills/test_executors.py",
    "sim/test_snapshot_worlds.py",
    "spark/spark/kills/test_drivers.py",
    "peers/bookkeeper/test_slice.py",
    "replication/kills/test_brokers.py",
    "sim/test_mixed_worlds.py",
    "replication/kills/test_executors.py",
    "replication/kills/test_drivers.py",
    "replication/test_far_apart.py",
    "replication/test_attempts.py",
    "replication/test_restore.py",
    "clients/test_failover.py",
    "peers/bookkeeper/test_cluster_example.py",
    "peers/pulsar/test_kit.py",
    "peers/bookkeeper/test_links.py",
)
"""Files of a minute and more, in this order. They come before the other slow ones: one that began last would run alone at the
end. Worlds use all processors, and the files between them wait for real processes, so they go well together.
"""

TELL_TAKEN = 0.02
"""Below it does not matter."""

settings.register_profile(
    "test", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", deadline=None, database=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts its background jobs so; tests of Ctrl-C are about everybody else.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent


_TAKEN = Taken()

if FORM.name == COMPILED:
    refuse_patches(FORM.modules)


def pytest_report_header() -> str:
    """Which form of the product is tested."""
    return f"magnetar: {FORM}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests that took long, on a machine whose processors were somebody else's, say so."""
    if (share := _TAKEN.share()) > TELL_TAKEN:
        terminalreporter.write_line(f"{share:.0%} of the processor time that was wanted here, the machine's host took")


def pytest_collection_finish() -> None:
    """Ten thousand tests stay to the end: Python's collector need not look at them again and again, nor forks copy them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by folder, long files first; deadlines of tests are patient; a compiled form leaves out tests of pure Python."""
    if FORM.name == COMPILED:
        pure = [item for item in items if item.nodeid.partition("[")[0].startswith(PURE)]
        items[:] = [item for item in items if item not in pure]
        config.hook.pytest_deselected(items=pure)
    for item in items:
        marked = item.get_closest_marker("timeout")
        if marked is not None:
            item.add_marker(pytest.mark.timeout(marked.args[0] * PATIENCE), append=False)

    def rank(item: pytest.Item) -> tuple[int, int]:
        path = item.path.relative_to(ROOT)
        if path.as_posix() in LONG:
            return ORDER.index("sim"), LONG.index(path.as_posix())
        return ORDER.index(path.parts[0]) if path.parts[0] in ORDER else len(ORDER) // 2, len(LONG)

    items.sort(key=rank)

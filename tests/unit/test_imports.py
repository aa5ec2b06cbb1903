"""The import rule of the architecture, read from the sources without running them.

    bookkeeper | core | wire, storage | schemas, metadata, effects | replication | broker | runtime |
    spark_session | spark | pipeline | admin | jobs | app | cli, client

A module imports from its own group and from groups to its left. The simulator, `magnetar_sim`, is a distribution of its own: it
may import all of them, and none of them imports it. Left of runtime there is no clock, no chance, no thread, no socket;
but `bookkeeper`, a product of its own that imports nothing of magnetar, has its own outside world in `bookkeeper/network`.
Only spark_session, spark, pipeline and jobs import pyspark. spark, the format "pulsar", imports core, wire, schemas and
spark_session alone.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import GROUPS, PACKAGE, SIMULATOR

SPARK = {"spark_session", "spark", "pipeline", "jobs"}
"""The packages that may import pyspark."""

ONLY = {"bookkeeper": set[str](), "spark": {"core", "wire", "schemas", "spark_session"}}
"""Packages that import less than what stands to their left: format("pulsar") is a product of its own, for any Pulsar broker; so
is the client of BookKeeper's ledgers.
"""

OUTSIDE = ("bookkeeper", "network")
"""The folder left of runtime that has clocks and sockets; the rest of its package does not import it."""

RANK = {name: rank for rank, names in enumerate(GROUPS) for name in names}

WORLD = {
    "asyncio",
    "socket",
    "threading",
    "multiprocessing",
    "concurrent",
    "time",
    "random",
    "secrets",
    "aiohttp",
    "uvloop",
}
"""Modules that bring the world in: banned left of runtime."""

CALLS = {("uuid", "uuid4"), ("uuid", "uuid1"), ("os", "urandom"), ("datetime", "now"), ("datetime", "utcnow")}
"""Names of modules that are harmless otherwise."""


def parts_of(path: Path) -> tuple[str, ...]:
    """Path of the module within `magnetar`; one of the simulator begins with `magnetar_sim`."""
    relative = path.relative_to(SIMULATOR.parent if path.is_relative_to(SIMULATOR) else PACKAGE)
    return tuple(part for part in relative.with_suffix("").parts if part != "__init__")


def imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of every import, at any depth; name is "" for `import module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, "." * node.level + (node.module or ""), alias.name


def uses(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of `module.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, node.value.id, node.attr


def faults(source: str, parts: tuple[str, ...]) -> list[str]:
    """What is wrong in one module, a line each."""
    tree = ast.parse(source)
    group = parts[0] if parts else ""
    deterministic = group in RANK and RANK[group] < RANK["runtime"] and parts[:2] != OUTSIDE
    found = []
    for line, module, name in imports(tree):
        where = f"{'.'.join(parts)}:{line}"
        if name == "*":
            found.append(f"{where}: star import from {module}")
        if module.startswith("."):
            found.append(f"{where}: relative import: write magnetar...")
        top, *rest = module.split(".")
        if top in {"pyspark", "py4j"} and group not in SPARK:
            found.append(f"{where}: only {', '.join(sorted(SPARK))} import {top}")
        if top == "tests":
            found.append(f"{where}: the product imports its tests")
        if top == "magnetar_sim" and group != "magnetar_sim":
            found.append(f"{where}: the product imports its simulator")
        if top != "magnetar":
            if deterministic:
                if top in WORLD or (top, name) in CALLS:
                    found.append(f"{where}: {module} {name} left of runtime: take it as an argument or an effect")
            continue
        imported = rest[0] if rest else name
        if imported in {"__version__", "FORM", ""}:
            continue
        if group and RANK[imported] > RANK[group]:
            found.append(f"{where}: {group} imports {imported}, which stands to its right")
        if group in ONLY and imported not in {group, *ONLY[group]}:
            found.append(
                f"{where}: {group} imports {imported}: it may import {', '.join(sorted(ONLY[group])) or 'itself'} alone"
            )
        if tuple(rest[:2]) == OUTSIDE and parts[:1] == OUTSIDE[:1] and parts[:2] != OUTSIDE:
            found.append(f"{where}: only {'/'.join(OUTSIDE)} has the outside world of {OUTSIDE[0]}")
    if deterministic:
        found += [
            f"{'.'.join(parts)}:{line}: {module}.{name} left of runtime: take it as an argument or an effect"
            for line, module, name in uses(tree)
            if (module, name) in CALLS
        ]
    return found


MODULES = [
    path for tree in (PACKAGE, SIMULATOR) for path in sorted(tree.rglob("*.py")) if not path.name.endswith("_pb2.py")
]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: ".".join(parts_of(path)) or "magnetar")
def test_imports_go_left(path: Path) -> None:
    assert faults(path.read_text(), parts_of(path)) == []


def test_every_folder_has_its_place() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert (folders | modules) - {"__pycache__"} <= set(RANK)


@pytest.mark.parametrize(
    ("parts", "source", "words"),
    [
        (("core", "x"), "from magnetar.wire import frames", "stands to its right"),
        (("spark", "x"), "from magnetar.runtime.network.link_connection import LinkDown", "may import core, schemas"),
        (("spark", "x"), "from magnetar import pipeline", "stands to its right"),
        (("bookkeeper", "x"), "from magnetar.core.ids import NONE", "may import itself alone"),
        (("bookkeeper", "ledgers", "x"), "import time", "left of runtime"),
        (
            ("bookkeeper", "ledgers", "x"),
            "from magnetar.bookkeeper.network.connection import X",
            "only bookkeeper/network",
        ),
        (("storage", "x"), "def f():\n    from magnetar.runtime.log.files import OsFiles", "stands to its right"),
        (("replication", "x"), "import magnetar.app", "stands to its right"),
        (("runtime", "x"), "from magnetar import cli", "stands to its right"),
        (("broker", "x"), "import time", "left of runtime"),
        (("broker", "x"), "import asyncio.tasks", "left of runtime"),
        (("replication", "x"), "from random import Random", "left of runtime"),
        (("metadata", "x"), "import uuid\nuuid.uuid4()", "left of runtime"),
        (("metadata", "x"), "from uuid import uuid4", "left of runtime"),
        (("storage", "x"), "import os\nos.urandom(3)", "left of runtime"),
        (("admin", "x"), "import pyspark.sql", "only jobs, pipeline, spark"),
        (("cli", "x"), "from magnetar.core.ids import *", "star import"),
        (("wire", "x"), "from . import frames", "relative"),
        (("storage", "log"), "from magnetar_sim.host.memory_files import MemoryFiles", "imports its simulator"),
        (("storage", "log"), "from tests.support.peer import Peer", "the product imports its tests"),
        (("cli", "x"), "from magnetar_sim.world import World", "imports its simulator"),
        (("app",), "import magnetar_sim", "imports its simulator"),
        (("magnetar_sim", "x"), "from . import world", "relative"),
        (("magnetar_sim", "x"), "import pyspark", "only jobs, pipeline, spark"),
    ],
)
def test_the_rule_sees(parts: tuple[str, ...], source: str, words: str) -> None:
    assert any(words in fault for fault in faults(source, parts))


@pytest.mark.parametrize(
    ("parts", "source"),
    [
        (("cli", "x"), "import time\nfrom magnetar.app import run_broker"),
        (("runtime", "x"), "import asyncio\nfrom magnetar.effects.outbox import Outbox"),
        (("wire", "x"), "from magnetar.storage.entries import NewEntry"),
        (("spark", "x"), "from pyspark.sql import SparkSession"),
        (("storage", "x"), "import os\nos.fsync(3)"),
        (("bookkeeper", "network", "x"), "import asyncio\nfrom magnetar.bookkeeper.network.connection import X"),
        (("magnetar_sim", "x"), "import random\nfrom magnetar_sim.host.memory_files import MemoryFiles"),
        (("magnetar_sim", "x"), "from magnetar_sim.world import World\nfrom magnetar.broker.broker import Broker"),
    ],
)
def test_the_rule_lets_through(parts: tuple[str, ...], source: str) -> None:
    assert faults(source, parts) == []


HEAVY = {"cryptography", "jwt", "numpy", "pyarrow", "pyspark", "py4j"}
"""What takes a tenth of a second and more to import, and is for those who use it."""


def test_a_broker_starts_without_what_it_may_never_need() -> None:
    code = "import sys, magnetar.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    assert HEAVY & loaded == set()
    assert {"magnetar.admin.waiting.role", "kazoo"} & loaded == set(), "a broker with a disk does not wait to take over"


def test_an_import_of_the_simulator_silences_no_logger() -> None:
    """Tests of the product run in processes that import it, and look for lines of these loggers."""
    program = (
        "import logging, magnetar_sim.command\n"
        "print([name for name, one in logging.root.manager.loggerDict.items()\n"
        "       if name.startswith('magnetar') and isinstance(one, logging.Logger) and one.level])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"

"""The processes that a pipeline's driver started, by what they do: the reader of a long batch, its writer."""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

import psutil

from tests.support.pipelines import Pipeline

FILTERED: Final = """
[[links]]
from = "a"
to = "b"
filter = "key is null or key <> 'here'"
[[links]]
from = "b"
to = "a"
"""
"""Links of a mesh of two, one of them with a filter. It leaves out messages with the key "here"."""


def below(pipeline: Pipeline, wanted: Callable[[list[str]], Any]) -> list[psutil.Process]:
    """Processes that a driver started, by their command lines."""
    assert pipeline.process is not None
    return descendants(psutil.Process(pipeline.process.pid), wanted)


def descendants(process: psutil.Process, wanted: Callable[[list[str]], Any]) -> list[psutil.Process]:
    """Processes that a process started, or that these started, by their command lines."""
    found = []
    for one in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            if one.status() != psutil.STATUS_ZOMBIE and wanted(one.cmdline()):
                found.append(one)
    return found


def workers(pipeline: Pipeline) -> list[psutil.Process]:
    """Python processes of Spark: workers of tasks, those of the driver that plan and commit, and the daemons that fork them."""
    return below(pipeline, is_python)


def is_python(words: list[str]) -> bool:
    """A Python process of Spark, by its command line."""
    return any(word.startswith("pyspark.") for word in words)


def is_executor(words: list[str]) -> bool:
    """The JVM of an executor, likewise."""
    return any("CoarseGrainedExecutorBackend" in word for word in words)


def connections(process: psutil.Process, ports: Collection[int]) -> Counter[int]:
    """How many connections a process has to each of some ports."""
    with contextlib.suppress(psutil.Error):
        return Counter(
            one.raddr.port
            for one in process.net_connections("tcp")
            if one.status == psutil.CONN_ESTABLISHED and one.raddr and one.raddr.port in ports
        )
    return Counter()


def readers(pipeline: Pipeline, ports: Collection[int]) -> list[psutil.Process]:
    """Readers of a mesh of two in which the link from one to the other has a filter: they have one connection, to its source.

    Writers read the links without a filter themselves.

    Args:
        pipeline: of the mesh.
        ports: of the two brokers.
    """
    return [one for one in workers(pipeline) if connections(one, ports).total() == 1]


def writers(pipeline: Pipeline, ports: Collection[int]) -> list[psutil.Process]:
    """Writers of a mesh of two: in addition to a connection to each broker as a destination, they have one to each source, for
    confirmations, and those of a reader; `ports` as for `readers`.
    """
    return [one for one in workers(pipeline) if connections(one, ports).total() > len(ports)]

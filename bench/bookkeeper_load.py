"""What bookies take from Java's own client, by the loop of `BookKeeperLoad.java`, in one process for all rounds of a bench."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.apache_bookkeeper import kit
from tests.support.jvm import PeerError, java

PROGRAM: Final = Path(__file__).with_name("BookKeeperLoad.java")

QUORUMS: Final = (3, 3, 2)
"""Ensemble, write quorum, ack quorum: the defaults of a cluster of Magnetar."""


class JavaLoad:
    """The program, as it runs. Made by `java_load`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def entries_per_s(self, count: int, size: int, window: int) -> float:
        """Add so many entries of a size, with a window of those that are not confirmed; the rate. Raises PeerError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{count} {size} {window}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{PROGRAM.name} has ended: its lines above say why")
        return count / int(line) * 1e9


@contextlib.contextmanager
def java_load(folder: Path, cluster: kit.BookKeeperCluster) -> Iterator[JavaLoad]:
    """Java's client on these bookies."""
    for part in ("logs", "tmp"):
        (folder / part).mkdir(parents=True)
    limits = [f"-Xmx{kit.HEAP}", f"-XX:MaxDirectMemorySize={kit.DIRECT}", "-XX:+UseSerialGC"]
    command = java(kit.fetch(), folder, limits, {"log4j.configurationFile": kit.HERE / "log4j2.xml"})
    command += [str(PROGRAM), cluster.uri, *map(str, QUORUMS)]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield JavaLoad(process)
        finally:
            process.kill()

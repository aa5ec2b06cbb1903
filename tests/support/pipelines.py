"""`magnetar replicate` as a real process."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.brokers import World
from tests.support.delaying_proxy import proxied

START_S = 240
"""A deadline: a Spark session takes some 7 s to start on an idle machine, a minute on a busy one."""


class Pipeline:
    """The replication pipeline of one clusters.toml.

    Args:
        config: the file.
        arguments: more of the command line.
        name: of its log file.
    """

    def __init__(self, config: Path, *arguments: str, name: str = "replicate") -> None:
        self.config = config
        self.arguments = arguments
        self.log = config.parent / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._out = config.parent / f"{name}.out"

    def start(self, *, wait: bool = True) -> "Pipeline":
        """Start; wait until it says that it replicates."""
        self._out.write_bytes(b"")
        with self.log.open("ab") as log, self._out.open("ab") as out:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "magnetar",
                    "replicate",
                    "-c",
                    str(self.config),
                    *self.arguments,
                ],
                stdout=out,
                stderr=log,
                env=os.environ,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while wait and b"replicating" not in self._out.read_bytes():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the pipeline did not start:\n{self.output()}\n{self.log.read_text()[-3000:]}")
            select.select([], [], [], 0.05)
        return self

    def output(self) -> str:
        """What it printed so far."""
        return self._out.read_text()

    def kill(self) -> None:
        """SIGKILL to the driver and everything it started, as a power cut of that machine."""
        process, self.process = self.process, None
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=20)

    def stop(self) -> int:
        """SIGTERM: it finishes its batch; the exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.terminate()
        return process.wait(timeout=60)

    def wait(self, timeout_s: float = 400) -> int:
        """Wait for its own end (`--once`)."""
        assert self.process is not None
        code = self.process.wait(timeout=timeout_s)
        self.process = None
        return code


@contextmanager
def replicating(
    folder: Path, clusters: Sequence[str], extra: str = "", *arguments: str, far: Mapping[str, float] | None = None
) -> Iterator[tuple[World, Pipeline]]:
    """Brokers and the pipeline between them, all started; killed at the end.

    Args:
        folder: an existing one, for clusters.toml, data and logs.
        clusters: their names.
        extra: more lines of clusters.toml.
        arguments: more of the pipeline's command line.
        far: the seconds between the pipeline and a cluster in each direction, by the cluster's name. The pipeline alone goes
            through a proxy and has a configuration of its own for that; a client next to the cluster does not.
    """
    with ExitStack() as stack:
        world = World(folder, list(clusters), extra)
        stack.callback(world.close)
        world.start()
        config = world.config
        if far:
            text = config.read_text()
            for name, one_way in far.items():
                port = world[name].pulsar_port
                text = text.replace(f'"127.0.0.1:{port}"', f'"127.0.0.1:{stack.enter_context(proxied(port, one_way))}"')
            config = folder / "pipeline.toml"
            config.write_text(text)
        pipeline = Pipeline(config, *arguments)
        stack.callback(pipeline.kill)
        pipeline.start()
        yield world, pipeline

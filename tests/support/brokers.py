"""Brokers as real processes on free ports, to be killed and started again."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from examples.demo.ports import free_ports

from tests.support.patience import PATIENCE

START_S = 20 * PATIENCE
"""A deadline, not a wait: a broker is ready in well under a second."""


_GIVEN: set[int] = set()


def free_port() -> int:
    """A TCP port that is free now and that this process has not got before."""
    while (port := free_ports(1)[0]) in _GIVEN:
        pass
    _GIVEN.add(port)
    return port


def eventually(
    check: Callable[[], Any],
    *,
    within_s: float = 20,
    every_s: float = 0.02,
    what: str = "",
) -> Any:
    """Ask until the answer is true; the answer. Fails with the last answer when the deadline, times PATIENCE, passes."""
    within_s *= PATIENCE
    deadline = time.monotonic() + within_s
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what or check}; last answer {answer!r}")
        time.sleep(every_s)


class BrokerProcess:
    """One cluster's broker as a child process.

    Args:
        config: path of clusters.toml.
        cluster: which cluster of it, and which of its brokers if there are several (`us-west/a`).
        pulsar_port, http_port: as in the file.
    """

    def __init__(self, config: Path, cluster: str, pulsar_port: int, http_port: int) -> None:
        self.config = config
        self.cluster = cluster
        self.pulsar_port = pulsar_port
        self.http_port = http_port
        self.process: subprocess.Popen[bytes] | None = None
        self.log = config.parent / f"{cluster.replace('/', '-')}.log"
        self.environment: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.pulsar_tls_port = 0
        self.https_port = 0

    @property
    def url(self) -> str:
        """For clients."""
        return f"pulsar://127.0.0.1:{self.pulsar_port}"

    @property
    def web(self) -> str:
        """For administration."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def url_tls(self) -> str:
        """For clients by TLS."""
        return f"pulsar+ssl://127.0.0.1:{self.pulsar_tls_port}"

    @property
    def web_tls(self) -> str:
        """For administration by TLS."""
        return f"https://127.0.0.1:{self.https_port}"

    def start(self) -> "BrokerProcess":
        """Start and wait for the ready line."""
        self.launch()
        return self.await_ready()

    def launch(self) -> None:
        """Start and do not wait."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "magnetar",
                    "broker",
                    self.cluster,
                    "-c",
                    str(self.config),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,  # `await_ready` waits for the pipe: no line may be in a buffer
                env=os.environ | self.environment,
            )

    def await_ready(self) -> "BrokerProcess":
        """Wait for the ready line."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = b" waits "
        while b" waits " in line:
            ready, _, _ = select.select([self.process.stdout], [], [], START_S)
            line = self.process.stdout.readline() if ready else b""
        if b" ready " not in line:
            self.kill()
            raise AssertionError(f"broker {self.cluster} did not start: {line!r}\n{self.log.read_text()[-3000:]}")
        return self

    def kill(self) -> None:
        """SIGKILL, as a power cut of the process."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, a clean end; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        code = process.wait(timeout=20)
        if process.stdout is not None:
            process.stdout.close()
        return code

    def rest(self, method: str, path: str, body: object = None) -> Any:
        """One request of the admin interface; the decoded answer (None when it is empty)."""
        request = urllib.request.Request(
            self.web + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"} | self.headers,
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                data = response.read()
        except urllib.error.HTTPError as error:
            # The reason, in what pytest shows. Only peeked at: tests read it themselves.
            said = cast("BufferedReader", error.fp).peek(500)[:500]
            error.msg = f"{error.msg}: {method} {path}: {said!r}"
            raise
        return json.loads(data) if data else None

    def figure(self, name: str) -> float:
        """A figure of the whole broker, as `/metrics` tells it."""
        request = urllib.request.Request(self.web + "/metrics", headers=self.headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        (value,) = [line.split()[-1] for line in lines if line.startswith(name + "{")]
        return float(value)


class World:
    """Some clusters on this machine, with one clusters.toml.

    Args:
        folder: for the file, the data and the logs.
        clusters: their names.
        extra: more lines of clusters.toml (tables).
        tls: whether they listen by TLS as well; `extra` has `[tls]` then.
    """

    def __init__(self, folder: Path, clusters: list[str], extra: str = "", *, tls: bool = False) -> None:
        self.folder = folder
        self.config = folder / "clusters.toml"
        self.brokers: dict[str, BrokerProcess] = {}
        lines = ['[magnetar]\ndata_dir = "data"\n']
        for name in clusters:
            pulsar, http = free_port(), free_port()
            lines.append(f'[clusters.{name}]\npulsar = "127.0.0.1:{pulsar}"\nhttp = "127.0.0.1:{http}"\n')
            self.brokers[name] = made = BrokerProcess(self.config, name, pulsar, http)
            if tls:
                made.pulsar_tls_port, made.https_port = free_port(), free_port()
                lines.append(f'pulsar_tls = "127.0.0.1:{made.pulsar_tls_port}"')
                lines.append(f'https = "127.0.0.1:{made.https_port}"\n')
        if (
            tail := os.environ.get("MAGNETAR_TAIL")
        ) and "tail =" not in extra:  # `make test` with the other kind of batches
            table = f'[replication]\ntail = "{tail}"\n'
            # Before the rest: tests add lines to the last table of the file.
            extra = extra.replace("[replication]\n", table) if "[replication]\n" in extra else f"{table}\n{extra}"
        self.config.write_text("\n".join(lines) + "\n" + extra)

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.brokers[name]

    def start(self) -> "World":
        """Start all brokers, at once."""
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.await_ready()
        return self

    def close(self) -> None:
        """End all brokers."""
        for broker in self.brokers.values():
            broker.kill()


def path_of(topic: str) -> str:
    """Of a topic below the administration's address; a name without a domain is one of the default namespace."""
    name = topic if "://" in topic else f"persistent://public/default/{topic}"
    return f"/admin/v2/{name.replace('://', '/')}"

"""A container that is a `magnetar broker` on the ports that the container's would be bound to."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from signal import Signals
from typing import Any

DATA_FOLDERS = "MAGNETAR_STAND_IN_DATA"
"""Environment variable: where the brokers' data go."""


class DockerContainer:
    """What the suite calls of the class of that name."""

    def __init__(self, image: str) -> None:
        self._environment: dict[str, str] = {}
        self._ports: dict[int, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path(os.environ[DATA_FOLDERS]) / f"{image.replace('/', '-').replace(':', '-')}-{id(self)}.log"

    def with_env(self, name: str, value: str) -> "DockerContainer":
        """Only the cluster's name means something to a broker of ours."""
        self._environment[name] = value
        return self

    def with_bind_ports(self, inside: int, outside: int) -> "DockerContainer":
        """6650 and 8080 are known inside."""
        self._ports[inside] = outside
        return self

    def with_command(self, _command: str) -> "DockerContainer":
        """It starts another server; this one needs none."""
        return self

    def start(self) -> None:
        """Start the broker; its data outlive a stop as little as a container's do."""
        command = [sys.executable, "-m", "magnetar", "broker", self._environment["clusterName"]]
        folder = tempfile.mkdtemp(dir=os.environ[DATA_FOLDERS])
        command += [
            "--data-dir",
            folder,
            "--pulsar-port",
            str(self._ports[6650]),
            "--http-port",
            str(self._ports[8080]),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        """Kill it, as a container that stops takes its process with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def kill(self, signal: str) -> None:
        """As docker's: the process gets the signal."""
        if self._process is not None:
            self._process.send_signal(Signals[signal])
            self._process.wait()

    def get_wrapped_container(self) -> Any:
        """Has `logs()` and can be stopped and started by the suite."""
        return self

    def logs(self) -> bytes:
        """Of the broker."""
        return self._log.read_bytes()

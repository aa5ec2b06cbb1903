"""A Spark standalone cluster, master and workers, as real processes on loopback."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.support.brokers import eventually, free_port
from tests.support.workers import descendants, is_executor


class Standalone:
    """Started by the classes that the pyspark package ships; ended with everything they started.

    Args:
        folder: for logs and the worker's files.
        cores, memory: of each worker.
        hosts: addresses on loopback, with a worker on each.
    """

    def __init__(self, folder: Path, cores: int = 2, memory: str = "2g", hosts: Sequence[str] = ("127.0.0.1",)) -> None:
        self._folder = folder
        self._web = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        try:
            self._start("master.Master", hosts[0], "--port", str(port), "--webui-port", str(self._web))
            eventually(lambda: self.state().get("status") == "ALIVE", within_s=60, every_s=0.1, what="a master")
            size = ("--cores", str(cores), "--memory", memory)
            for host in hosts:
                work = str(folder / f"work-{host}")
                self._start("worker.Worker", host, "--webui-port", "0", "--work-dir", work, *size, self.url)
            alive = len(hosts)
            eventually(lambda: self.state().get("aliveworkers") == alive, within_s=60, every_s=0.1, what="the workers")
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, host: str, *arguments: str) -> None:
        home = Path(pyspark.__path__[0])
        # As on a machine of its own: nothing of this process's Python may leak into the executors.
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYSPARK", "SPARK"))
        }
        with (self._folder / f"{name}-{host}.log").open("wb") as log:
            process = subprocess.Popen(
                [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", "--host", host, *arguments],
                stdout=log,
                stderr=log,
                env=environment | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": host},
                start_new_session=True,
            )
        self._processes.append(process)

    def state(self) -> dict[str, Any]:
        """What the master says of itself; empty while it does not answer."""
        for process in self._processes:
            if process.poll() is not None:
                logs = [path.read_text()[-2000:] for path in self._folder.glob("*.log")]
                raise AssertionError("the Spark cluster ended:\n" + "\n".join(logs))
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=5) as answer:
                found: dict[str, Any] = json.loads(answer.read())
        except (
            OSError,
            json.JSONDecodeError,
        ):  # Spark adds its pages one by one: the first one answers for all of them
            return {}
        return found

    def executors(self) -> list[psutil.Process]:
        """The JVMs of the executors."""
        of_each = (descendants(psutil.Process(process.pid), is_executor) for process in self._processes)
        return [one for found in of_each for one in found]

    def close(self) -> None:
        """End master, workers and executors."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=20)

"""What a Spark worker process does once."""

import gc
import subprocess
import sys

from magnetar.spark_session import worker

IN_A_WORKER = """
import gc, sys, types
main = sys.modules["__main__"]
main.__spec__ = types.SimpleNamespace(name="pyspark.daemon")
from magnetar.spark_session.worker import settle
settle()
first = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
settle()
print(first > 0, gc.get_freeze_count() <= first)
"""


def test_a_worker_freezes_what_it_has_once() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_WORKER], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["True", "True"], "")


def test_nothing_is_frozen_elsewhere() -> None:
    before = gc.get_freeze_count()
    worker.settle()
    assert gc.get_freeze_count() == before

"""`replicate.run` as a process of its own, on several masters, between clusters in memory."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.pandas import serializers

from magnetar.core.config import load
from magnetar.core.errors import ConfigError
from magnetar.core.settings import ReplicationLimits
from magnetar.pipeline import replicate
from magnetar.pipeline.coordinator import PipelineCoordinator
from magnetar.pipeline.link_state import ALL, Link
from magnetar.pipeline.planner import BULK, LONG, TAIL
from magnetar.pipeline.shared_state import Pipeline
from magnetar.runtime.clock import wall_ms
from magnetar.spark_session import session
from tests.spark.conftest import Running
from tests.spark.fakes import TOKEN, FakeCluster, entry_bytes, eventually
from tests.support.patience import PATIENCE
from tests.unit.pipeline.worlds import report, shake, state

# The first test here starts Java, and a deadline for all only ends what hangs.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

T = "persistent://public/default/t"

PROGRAM = """
import sys
from pathlib import Path
from magnetar.core.config import load
from magnetar.core.errors import MagnetarError
from magnetar.pipeline.replicate import ReplicateOptions, run
try:
    code = run(
        ReplicateOptions(config=load(Path(sys.argv[1])), master=sys.argv[2], once=sys.argv[3] == "once"),
        lambda line: print(line, flush=True),
    )
except MagnetarError as error:
    print(f"error: {error}", flush=True)
    code = 1
sys.exit(code)
"""


def configure(folder: Path, *clusters: FakeCluster) -> Path:
    token = folder / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    # Short ones: clusters in memory answer no GEO_FETCH.
    text = '[replication]\ntail = "short-batches"\ntoken_file = "token"\ncheckpoint_dir = "pipeline/checkpoint"\n'
    for number, cluster in enumerate(clusters):
        text += f'[clusters.{cluster.name}]\npulsar = "{cluster.address}"\nhttp = "127.0.0.1:{20000 + number}"\n'
    path = folder / "clusters.toml"
    path.write_text(text)
    return path


def start(config: Path, master: str, mode: str = "stay", **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(config), master, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def finish(process: "subprocess.Popen[str]", timeout: float = 60) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout * PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def wait_for_line(process: "subprocess.Popen[str]", text: str, timeout: float = 60) -> None:
    assert process.stdout is not None
    until = time.monotonic() + timeout * PATIENCE
    while time.monotonic() < until:
        if select.select([process.stdout], [], [], 0.2)[0] and text in process.stdout.readline():
            return
        assert process.poll() is None, process.communicate()
    raise AssertionError(f"no line with {text!r}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_once_replicates_what_is_there_and_lists_what_is_blocked(tmp_path: Path, clusters: Any) -> None:
    a, b = clusters("a", "b")
    bad = T + "-bad"
    for name in (T, bad):
        a.create(name, links=("b",))
        for number in range(20):
            a.publish(name, entry_bytes(10, sequence=number))
    config = configure(tmp_path, a, b)
    b.create(bad)
    b.block[bad] = ("size", "too large")
    code, out, err = finish(start(config, "local[2,4]", "once"))
    assert b.identities(T, "a") == list(range(20))
    assert code == 1
    assert f"a -> b, {bad}: blocked: size: too large" in out
    assert "Traceback" not in out + err
    assert "WARN" not in out + err
    assert TOKEN not in (tmp_path / "pipeline" / "spark.log").read_text()
    assert (tmp_path / "pipeline" / "pipeline.jsonl").read_text().count("\n") >= 1
    del b.block[bad]
    code, out, err = finish(start(config, "local[2,4]", "once"))
    assert code == 0, out
    assert b.identities(bad, "a") == list(range(20))
    assert not b.violations


def arguments_of(pid: int) -> Iterator[str]:
    """The command lines of a process and everything below it; those that end meanwhile are left out."""
    for one in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield " ".join(one.cmdline())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_of_executors_and_sigterm(tmp_path: Path, clusters: Any) -> None:
    a, b = clusters("a", "b")
    a.create(T, links=("b",))
    for number in range(50):
        a.publish(T, entry_bytes(1000, sequence=number))
    process = start(configure(tmp_path, a, b), "local-cluster[2,1,1024]")
    try:
        eventually(lambda: b.identities(T, "a") == list(range(50)), 90, "replicated by executors")
        arguments = " ".join(arguments_of(process.pid))
        assert "CoarseGrainedExecutorBackend" in arguments, "there are executors"
        assert TOKEN not in arguments
        process.send_signal(signal.SIGTERM)
        code, out, err = finish(process)
        assert code == 0, out + err
        assert "Traceback" not in out + err
    finally:
        process.kill()
    eventually(lambda: a.topics[T].cursors["b"].c == a.topics[T].last, what="the last commit was told")


def test_no_java_is_one_line(tmp_path: Path, clusters: Any) -> None:
    code, out, err = finish(start(configure(tmp_path, *clusters("a", "b")), "local[1]", JAVA_HOME="/nowhere"))
    assert code == 1
    assert err == ""
    assert out.count("\n") == 1
    assert "Spark needs Java 17 or newer" in out
    assert "JAVA_HOME=/nowhere" in out


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_391"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("nothing", 0),
    ],
)
def test_java_versions(text: str, version: int) -> None:
    assert session.java_version(text) == version


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[2]", 2), ("local[3,4]", 3), ("local-cluster[2,3,1024]", 6), ("spark://host:7077", 4)],
)
def test_cores_of_a_master(master: str, cores: int) -> None:
    assert session.cores_of(master) == cores


def test_a_checkpoint_of_another_format_is_thrown_away(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    replicate.prepare_checkpoint(folder)
    (folder / "tail").mkdir()
    replicate.prepare_checkpoint(folder)
    assert (folder / "tail").exists(), "the same format stays"
    (folder / replicate.FORMAT_FILE).write_text("entries 0")
    replicate.prepare_checkpoint(folder)
    assert not (folder / "tail").exists()


def test_a_folder_that_is_no_checkpoint_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"holds 'thesis.tex'"):
        replicate.prepare_checkpoint(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_a_wrong_filter_is_named(spark: Any, tmp_path: Path) -> None:
    for text, message in (("key =", "filter of link a -> b"), ("nonsense > 1", "nonsense"), ("1 + 1", "type int")):
        links = (Link(0, "a", "b", text),)
        pipeline = replicate.Pipeline(links, {}, TOKEN, 2, "x")
        with pytest.raises(ConfigError, match=message) as caught:
            replicate.check_filters(spark, pipeline)
        assert "\n" not in str(caught.value)
    replicate.check_filters(
        spark, replicate.Pipeline((Link(0, "a", "b", "key is null or flags = 1"),), {}, TOKEN, 2, "x")
    )


def test_a_spark_that_does_not_allow_long_batches_gets_short_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other versions of PySpark may have no such attribute: that is said in one line, and the pipeline works."""
    path = tmp_path / "clusters.toml"
    text = "".join(
        f'[clusters.{name}]\npulsar = "127.0.0.1:{port}"\nhttp = "127.0.0.1:{port + 1}"\n'
        for name, port in (("a", 20000), ("b", 20010))
    )
    path.write_text(f'[replication]\ntail = "long-batches"\nmaster = "local[2,4]"\n{text}')
    options = replicate.ReplicateOptions(config=load(path))
    lines: list[str] = []
    assert replicate.queries_of(options, lines.append) == (*LONG, BULK)
    assert not lines, "this version allows them"
    assert replicate.master_of(options, long=True) == "local[4,4]"

    monkeypatch.setattr(serializers, "ArrowStreamSerializer", type("Former", (), {}))
    queries = replicate.queries_of(options, lines.append)
    assert queries == (TAIL, BULK)
    (line,) = lines
    assert f"long batches are not possible with PySpark {pyspark.__version__}" in line
    assert "\n" not in line
    assert replicate.master_of(options, long=False) == "local[2,4]"


def test_a_query_that_ended_is_started_again(clusters: Any, pipeline: Any) -> None:
    a, b = clusters("a", "b")
    a.create(T, links=("b",))
    running: Running = pipeline(a, b, links=("a:b",))
    for query in running.queries.running.values():
        query.stop()
    a.publish(T, entry_bytes(10))
    eventually(lambda: b.identities(T, "a") == [0])
    assert any("restarting" in line for line in running.lines)


def test_a_checkpoint_that_a_kill_left_half_is_begun_anew(clusters: Any, pipeline: Any, tmp_path: Path) -> None:
    # Offsets without the query's metadata: Spark refuses to start on that, and would for ever.
    folder = tmp_path / "checkpoint-0"
    replicate.prepare_checkpoint(folder)
    offsets = folder / ALL / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"v":1,"n":1}')
    a, b = clusters("a", "b")
    a.create(T, links=("b",))
    a.publish(T, entry_bytes(10))
    pipeline(a, b, links=("a:b",))
    eventually(lambda: b.identities(T, "a") == [0])


def test_a_query_that_cannot_be_started_again_is_tried_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    query = SimpleNamespace(isActive=True, exception=lambda: None)
    dead = SimpleNamespace(isActive=False, exception=lambda: None)
    outcomes = [dead, Py4JError("java.io.IOException: Broken pipe"), PySparkException("no room"), query]

    def start_query(*_: Any) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(replicate, "start_query", start_query)
    monkeypatch.setattr(replicate, "RESTART_MS_MAX", 20)
    lines: list[str] = []
    coordinator: Any = SimpleNamespace(query_ended=lambda _query: None)
    queries = replicate.Queries(None, coordinator, (ALL,), tmp_path, lines.append)  # type: ignore[arg-type]
    eventually(lambda: queries.tend() or queries.running[ALL] is query, 5)  # type: ignore[func-returns-value]
    ended, refused = lines
    assert "restarting" in ended
    assert "does not start" in refused
    assert "no room" in refused


@pytest.mark.parametrize("how", ["it failed", "the token changed"])
def test_a_batch_that_its_query_did_not_report_is_over_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    query = SimpleNamespace(isActive=True, exception=lambda: None, stop=lambda: None)
    monkeypatch.setattr(replicate, "start_query", lambda *_: query)
    coordinator = PipelineCoordinator(
        Pipeline((Link(0, "a", "b"),), dict.fromkeys("ab", "127.0.0.1:1"), TOKEN, 2, "test")
    )
    queries = replicate.Queries(None, coordinator, (TAIL, BULK), tmp_path, lambda _line: None)  # type: ignore[arg-type]
    pipeline_state, now = coordinator.state, wall_ms()
    report(pipeline_state, state("near"), state("far", size=100 << 20))
    shake(pipeline_state, now=now)
    assert coordinator.plan(TAIL) and coordinator.plan(BULK)
    report(
        pipeline_state, state("near"), state("far", c=8, s=8, size=1000)
    )  # told by another pipeline; of the tail by now
    later = now + ReplicationLimits().handshake_idle_ms
    shake(pipeline_state, counter=4, now=later)  # the destination was started again
    assert not coordinator.wait(TAIL, 0) and not coordinator.wait(BULK, 0)
    query.isActive = how != "it failed"
    if query.isActive:
        queries.renew()
    else:
        queries.tend()
    [asked] = shake(pipeline_state, w={"far": 8}, counter=4, now=later)
    assert {one.topic for one in asked.topics} == {"near", "far"}
    assert {part.topic for task in coordinator.plan(TAIL) for part in task.ranges} == {"near", "far"}


def test_once_gives_up_when_the_query_ends_again_and_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dead = SimpleNamespace(isActive=False, exception=lambda: None)
    monkeypatch.setattr(replicate, "start_query", lambda *_: dead)
    monkeypatch.setattr(replicate, "RESTART_MS_MAX", 10)
    lines: list[str] = []
    coordinator: Any = SimpleNamespace(
        pipeline=SimpleNamespace(limits=ReplicationLimits(), token=""), status=dict, query_ended=lambda _query: None
    )
    monkeypatch.setattr(replicate.Once, "left", lambda _: None)
    queries = replicate.Queries(None, coordinator, (ALL,), tmp_path, lines.append)  # type: ignore[arg-type]
    options = replicate.ReplicateOptions(config=load(None), once=True)
    assert replicate._watch(options, coordinator, queries, tmp_path / "pipeline.jsonl", lines.append) == 1
    assert "given up: the query ended 3 times" in lines[-1]


def test_the_metrics_file_is_rotated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.jsonl"
    path.write_bytes(b"x" * (16 << 20))
    coordinator: Any = SimpleNamespace(
        pipeline=SimpleNamespace(limits=ReplicationLimits(), token=""), status=lambda: {"pipeline": "p"}
    )
    monkeypatch.setattr(replicate.Once, "left", lambda _: [])
    queries: Any = SimpleNamespace(tend=lambda: None, failures=0)
    options = replicate.ReplicateOptions(config=load(None), once=True)
    assert replicate._watch(options, coordinator, queries, path, lambda _line: None) == 0
    assert path.stat().st_size < 1000
    assert {json.loads(line)["pipeline"] for line in path.read_text().splitlines()} == {"p"}
    assert (tmp_path / "pipeline.jsonl.1").stat().st_size == 16 << 20

"""The Spark session of the pipeline: finding Java, quiet logs, and the settings that measured best.

All output of Spark goes to a log file. This takes two steps: log4j is configured by Magnetar's own file, and the JVM
and its Python workers inherit that log file as standard error, because some of their warnings come before log4j starts
or bypass it.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.core.errors import ConfigError
from magnetar.spark_session.forks import forks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
"""The lowest version for Spark 4."""

PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]
"""The folder that holds the package `magnetar`: executors on this machine import it from there."""

COMPILER: Final = "-XX:TieredStopAtLevel=1"
COLLECTOR: Final = "-XX:+UseParallelGC"
COUNTERS: Final = "-XX:-UsePerfData"
METASPACE: Final = "-XX:MetaspaceSize=160m"
JAVA_OPTIONS: Final = f"{COMPILER} {COLLECTOR} {COUNTERS} {METASPACE}"
"""Java's first compiler only; a collector that does nothing while there is nothing to collect; no counters for `jstat`, which
wake an idle JVM 20 times a second; room for Spark's classes, 120 MB, which otherwise cause full collections at the start."""

YOUNG: Final = "-XX:MaxNewSize=128m"
"""Space for new objects next to the driver: Java uses all of it before it collects anything, which was 325 MB of resident memory.
The largest batch of rows has 4 MB, and tails of links collect a few times a minute."""

_CHOSEN_COLLECTOR: Final = re.compile(r"-XX:\+Use\w*GC\b")

SETTINGS: Final[Mapping[str, str]] = {
    # Measured (docs/design/pipeline.md#measurements): write-ahead log 26 -> 8 ms, offset commit 32 -> 17 ms per batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "8",
    # Limited by size rather than by rows: rows have 100 bytes or 5 MB.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    "spark.buffer.size": "65536",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    "spark.python.worker.reuse": "true",
    # Half the system calls' time of moving bytes between the JVM and its workers (docs/performance.md).
    "spark.python.unix.domain.socket.enabled": "true",
    # The JVM copies blocks here, for which the first compiler is enough; the second one took more processor time than all of
    # the copying, for minutes after every start: 18 s instead of 11 a GB at first, 13 instead of 9 later.
    "spark.driver.defaultJavaOptions": f"{JAVA_OPTIONS} {YOUNG}",
    "spark.executor.defaultJavaOptions": JAVA_OPTIONS,
    "spark.sql.adaptive.enabled": "false",
    # Spark's default of 200 is for clusters: `verify` of 6,000 entries took 70 s with it.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    # Looking for extensions among the JARs finds one, functions for machine learning, whose making starts Scala's compiler: 1.8 s
    # of processor, a third of what a session takes. Those that `spark.sql.extensions` names are loaded all the same.
    "spark.sql.extensions.test.loadFromCp": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.killEnabled": "false",
}
"""Defaults of the pipeline's session; `[replication.spark]` overrides them."""


def java_version(text: str) -> int:
    """The major version in what `java -version` prints; 0 if it is not there. `1.8.0` is 8."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0


def find_java() -> Path:
    """The Java that Spark will run on.

    Raises:
        ConfigError: there is none of version 17 or newer; says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "the PATH"
    right = (
        f"Spark needs Java {JAVA_MIN} or newer: install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; "
        "macOS: brew install openjdk@17), or set JAVA_HOME"
    )
    if not found or not Path(found).exists():
        raise ConfigError(f"no Java in {where}. {right}")
    try:
        version = java_version(java_says(Path(found)))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{found} does not run: {error}. {right}") from None
    if version < JAVA_MIN:
        raise ConfigError(f"{found} is Java {version or 'of an unknown version'}. {right}")
    return Path(found)


@cache
def java_says(java: Path) -> str:
    """The output of a Java when it is asked for its version.

    Raises:
        OSError, subprocess.TimeoutExpired: it does not run.
    """
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    return shown.stderr + shown.stdout


def cores_of(master: str, default: int = 4) -> int:
    """The number of tasks that a master runs at once, as far as its URL says."""
    local = re.fullmatch(r"local\[(\d+|\*)(?:,\d+)?\]", master)
    if local:
        return (os.cpu_count() or 1) if local[1] == "*" else int(local[1])
    cluster = re.fullmatch(r"local-cluster\[(\d+),(\d+),\d+\]", master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    return 1 if master == "local" else default


def with_slots(master: str, slots: int) -> str:
    """A local master with at least this number of tasks at once; any other one as it is."""
    local = re.fullmatch(r"local\[(\d+)(,\d+)?\]", master)
    return f"local[{max(slots, int(local[1]))}{local[2] or ''}]" if local else master


@contextmanager
def standard_error_to(path: Path) -> Iterator[None]:
    """Child processes started meanwhile write their standard error to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def slim_home(folder: Path) -> Iterator[None]:
    """A SPARK_HOME without the archive of Spark's own Python code, for a Spark that is started inside the block.

    That archive comes first on the path of each Python process that Spark starts, and has no compiled code. So every
    process compiled half of PySpark again, which took 0.8 s of processor time instead of 0.3 s. A source of a stream
    has ten seconds to start, which cannot be configured; on a loaded machine that was not enough. The same code is
    installed, compiled, for the interpreter that runs the workers. An installation that SPARK_HOME names is left as it
    is.
    """
    if "SPARK_HOME" in os.environ:
        yield
        return
    found = importlib.util.find_spec("pyspark")
    assert found is not None  # imported before
    assert found.origin is not None
    home = folder / "spark-home"
    home.mkdir(parents=True, exist_ok=True)
    for part in Path(found.origin).parent.iterdir():
        link = home / part.name
        if part.name == "python" or (link.is_symlink() and link.readlink() == part):
            continue
        link.unlink(missing_ok=True)
        with suppress(FileExistsError):  # another session here made it just now
            link.symlink_to(part)
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def build(
    *,
    app: str,
    master: str,
    log: Path,
    settings: Mapping[str, str] | None = None,
    lasting: bool = True,
    java: str | None = None,
) -> "SparkSession":
    """Start (or get) the session.

    Args:
        app: name shown in the Spark UI.
        master: Spark master URL.
        log: file for all output of Spark.
        settings: the operator's own, over ours.
        lasting: whether the log's folder stays for as long as this process: Java loads classes through it (`slim_home`).
        java: options for Java in addition to the operator's; None: the options for a fast start (`classes`).

    Raises:
        ConfigError: no Java, or Spark does not start; one line.
    """
    version = java_says(find_java())
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError('PySpark is not installed: pip install "magnetar[spark]"') from None
    from pyspark import accumulators

    from magnetar.spark_session import classes

    for name in ("AccumulatorTCPServer", "AccumulatorUnixServer"):
        # When a session stops, the JVM closes its end of the connection first, which socketserver would print as a
        # traceback.
        setattr(getattr(accumulators, name), "handle_error", lambda *_: None)  # noqa: B010
    log.parent.mkdir(parents=True, exist_ok=True)
    own = settings or {}
    options = classes.options(version) if java is None else java
    with standard_error_to(log):
        machine_settings = _environment(master, log, own.get("spark.pyspark.python"), options)
    merged = {**machine_settings, **SETTINGS, **_java(os.environ), **own}
    builder = SparkSession.builder.appName(app).master(master)
    for key, value in merged.items():
        builder = builder.config(key, value)
    try:
        with standard_error_to(log), slim_home(log.parent) if lasting else nullcontext():
            session = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001 - py4j and the JVM raise what they like; the user gets one line
        raise ConfigError(f"Spark does not start with master {master}: {first_line(error)} (see {log})") from None
    return session


@contextmanager
def settings(spark: "SparkSession", changed: Mapping[str, str]) -> Iterator[None]:
    """Have other settings of SQL for a while."""
    before: dict[str, str | None] = {key: spark.conf.get(key, None) for key in changed}
    try:
        for key, value in changed.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, former in before.items():
            if former is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, former)


def flush_missing() -> str:
    """Which installed version does not let a Python source write out each Arrow batch at once; "" if it does.

    Spark has no setting for it; its own pipelined functions do it by the attribute that is looked for here.
    """
    import pyspark
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    return "" if hasattr(ArrowStreamSerializer(), "_flush_per_batch") else f"PySpark {pyspark.__version__}"


def stop(spark: "SparkSession", log: Path) -> None:
    """Stop a session; its last output goes to the log."""
    with standard_error_to(log):
        spark.stop()


def _java(environment: Mapping[str, str]) -> dict[str, str]:
    """Java's default options here: a JVM that is given two collectors, one by its user's environment, does not start."""
    given = " ".join(environment.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"))
    if not _CHOSEN_COLLECTOR.search(given):
        return {}
    return {"spark.driver.defaultJavaOptions": COMPILER, "spark.executor.defaultJavaOptions": COMPILER}


def interpreter(master: str) -> str:
    """The program that runs Spark's Python processes; with a local master it has a fork server run them.

    Executors of a cluster may be on other machines, where there is none.
    """
    started = forks() if re.fullmatch(r"local(\[.*\])?", master) else None
    return str(started.program) if started else sys.executable


def _environment(master: str, log: Path, own_python: str | None, java: str) -> dict[str, str]:
    """Settings that depend on this machine and process.

    Args:
        master, log: see `build`.
        own_python: the operator's interpreter for the workers, next to the driver and on executors; None: this one.
        java: options of every Java on this machine.
    """
    python_path = os.pathsep.join(
        dict.fromkeys([str(PACKAGE_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    )
    # The workers next to the driver inherit the environment; those of executors get it by a setting.
    os.environ["PYTHONPATH"] = python_path
    python = own_python or (interpreter(master) if "SPARK_HOME" not in os.environ else sys.executable)
    os.environ["PYSPARK_PYTHON"] = python  # pyspark reads this one, not the setting
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    options = f"-Dlog4j2.configurationFile=file:{Path(__file__).with_name('log4j2.properties')} -Dmagnetar.log={log}"
    settings = {
        "spark.pyspark.python": python,
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.extraJavaOptions": f"{options} {java}".strip(),
    }
    if master.startswith(("local", "spark://127.", "spark://localhost")):  # everything is on this machine
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
    if master.startswith("local"):
        # Executors that others start may have another Java, and this package only once a worker runs (spark.submit.pyFiles).
        settings["spark.python.daemon.module"] = "magnetar.spark_session.daemon"
        options = settings["spark.driver.extraJavaOptions"]
    if not master.startswith("local["):
        settings["spark.executorEnv.PYTHONPATH"] = python_path
        settings["spark.executorEnv.PYTHONWARNINGS"] = "ignore::FutureWarning"
        settings["spark.executorEnv.PYSPARK_PYTHON"] = python
        settings["spark.executor.extraJavaOptions"] = options.replace(str(log), f"{log}.executor")
    return settings


def activate(spark: "SparkSession") -> None:
    """Make this the session of the calling thread.

    Spark looks up data sources written in Python in the session of the thread, and a thread other than the one that made
    the session has none: `readStream` of that very session then says that no such format exists (Spark 4.3).
    """
    jvm: Any = spark.sparkContext._jvm  # no public way in PySpark 4
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def first_line(error: BaseException) -> str:
    """The one line of an error that says what is wrong: our own worker's, else a Java cause, without their stacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        own = re.match(r"magnetar\.[\w.]+: (.+)", line)  # raised by our own code in a Python worker: written for users
        if own:
            return own[1][:300]
    causes = [line for line in lines if re.match(r"(Caused by: )?[\w.$]*(Exception|Error)\b", line)]
    return (causes[-1] if causes else lines[0] if lines else type(error).__name__)[:300]

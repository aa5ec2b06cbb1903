"""An archive of Java's classes for Spark ("class data sharing"), with which Java starts in half the time.

Without it each new JVM reads some 15,000 classes from 280 JARs, parses and verifies them. This took 4.6 s of the 9 s of
processor time that a driver used until its first micro-batch was done, and 1.8 s of an executor's 4 s. The archive has
160 MB, is ready to be mapped, and all JVMs of a machine share it.

It is valid for one Java and one Spark at one location each. `make setup` (`python -m magnetar.spark_session.classes`)
makes it in the environment in which Spark is installed: 30 s of processor time, once. If it is missing or does not fit,
everything works without it.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from magnetar.core.errors import ConfigError, MagnetarError

DUMP_S: Final = 300
"""A deadline for a JVM that writes the archive as it ends: 10 s on an idle machine."""

QUIET: Final = "-Xlog:cds*=off"
"""Otherwise Java would print on standard output that an archive does not fit, and continue without it."""


def archive_path(version: str) -> Path:
    """The path of the archive, whether it exists or not.

    Args:
        version: output of `java -version`.
    """
    import pyspark

    one = hashlib.sha256(f"{version}\0{pyspark.__version__}\0{pyspark.__file__}".encode()).hexdigest()[:16]
    return Path(sys.prefix) / "share" / "magnetar" / f"spark-{one}.jsa"


def options(version: str) -> str:
    """Java's options that use the archive; "" if there is none, or Spark is another one than that of this environment."""
    found = archive_path(version)
    return f"-XX:SharedArchiveFile={found} {QUIET}" if "SPARK_HOME" not in os.environ and found.is_file() else ""


def make() -> Path:
    """Make a new archive, by running what pipelines run.

    Raises:
        ConfigError: no Java or no Spark, one line.
        MagnetarError: Java wrote no archive.
    """
    from magnetar.spark_session import session

    archive = archive_path(session.java_says(session.find_java()))
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{archive.parent} cannot be made: {error.strerror}; it is to hold Spark's classes") from None
    with tempfile.TemporaryDirectory(prefix="magnetar-classes-") as name:
        folder = Path(name)
        made = archive.with_suffix(f".{os.getpid()}")
        spark = session.build(
            app="classes", master="local[2]", log=folder / "spark.log",
            settings={"spark.ui.port": "0"},  # not without the UI: pipelines have it
            lasting=False,  # the archive holds the paths of the JARs: those of the installation
            java=f"-XX:ArchiveClassesAtExit={made} {QUIET}",
        )  # fmt: skip
        gateway: Any = spark.sparkContext._gateway
        try:
            rehearse(spark, folder)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises; the user gets one line
            gateway.proc.kill()
            raise MagnetarError(f"Spark's classes cannot be loaded: {session.first_line(error)}") from None
        session.stop(spark, folder / "spark.log")
        gateway.shutdown()
        gateway.proc.stdin.close()  # by which PySpark's JVM knows that it is over
        try:
            gateway.proc.wait(DUMP_S)
            made.replace(archive)
        except (OSError, subprocess.TimeoutExpired) as error:
            gateway.proc.kill()
            made.unlink(missing_ok=True)
            raise MagnetarError(f"Java wrote no archive of Spark's classes: {error}") from None
    for old in archive.parent.glob("spark-*.jsa"):
        if old != archive:
            old.unlink(missing_ok=True)
    return archive


def rehearse(spark: Any, folder: Path) -> None:
    """Load the classes of pipelines: run a stream from a Python source to a Python sink, and (as `verify` does) a
    shuffle.

    More, such as joins of frames and Parquet, would make the archive a fifth larger, and making it slower by as much.
    """
    import pyarrow as pa
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        InputPartition,
        WriterCommitMessage,
    )

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, Any]:  # noqa: N802
            return {"at": 0}

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
            return {"at": 3}

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            return [InputPartition(number) for number in range(end["at"])]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"value": pa.array([str(partition.value).encode()], pa.binary())})

    class Writer(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Rehearsal(DataSource):
        @classmethod
        def name(cls) -> str:
            return "magnetar-rehearsal"

        def schema(self) -> str:
            return "value binary"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return Reader()

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
            return Writer()

    spark.dataSource.register(Rehearsal)
    frame = spark.readStream.format("magnetar-rehearsal").load()
    writer = frame.writeStream.format("magnetar-rehearsal").option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.sparkContext.parallelize(range(10), 2).map(lambda n: (n % 2, n)).groupByKey().count()


def main(arguments: list[str]) -> int:
    """Make the archive; with `--missing` only if there is none that fits. The exit code."""
    from magnetar.spark_session import session

    try:
        if arguments not in ([], ["--missing"]):
            raise ConfigError(
                f"{' '.join(arguments)}: the only option is --missing: make the archive only if there is none"
            )
        if arguments and archive_path(session.java_says(session.find_java())).is_file():
            return 0
        sys.stderr.write("magnetar: loading Spark's classes once, for faster starts\n")
        make()
    except MagnetarError as error:
        sys.stderr.write(f"magnetar: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A driver program of its own, to be killed. Its argument is JSON: url, topics, target, folder, master.

Moves everything from some topics to another one, 5 messages of each in a batch, until all scenes were played, then the
rest at once. A query that fails is started again; a driver that was killed, by the test.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from magnetar.spark_session import session
from tests.support.killing import FOLDER, FORMAT, KilledFormat, Stage

RESTARTS_MAX = 200


def main(given: dict[str, Any]) -> None:
    """Run to the end."""
    folder = Path(given["folder"])
    stage = Stage(folder / "scenes")
    os.environ[FOLDER] = str(stage.folder)
    settings = {
        "spark.ui.enabled": "false",
        f"spark.executorEnv.{FOLDER}": str(stage.folder),
    }
    spark = session.build(app="killed", master=given["master"], log=folder / "spark.log", settings=settings)
    spark.dataSource.register(KilledFormat)
    context = spark.sparkContext
    assert context._jvm is not None
    jvm = context._jvm.java.lang.ProcessHandle.current().pid()
    (stage.folder / "driver").write_text(f"{jvm} {os.getpid()}")
    for _ in range(RESTARTS_MAX):
        more = stage.played < len(stage.scenes())
        try:
            run(spark, given, folder, {"maxMessagesPerTrigger": str(5 * len(given["topics"]))} if more else {})
        except Exception as error:  # noqa: BLE001 - whatever a killed process makes of it
            sys.stderr.write(f"{stage.played}: {session.first_line(error)}\n")
            continue
        if not more:
            break
    session.stop(spark, folder / "spark.log")


def run(spark: Any, given: dict[str, Any], folder: Path, limits: dict[str, str]) -> None:
    """One query, as far as it comes."""
    options = {"service.url": given["url"], "startingOffsets": "earliest", "topics": ",".join(given["topics"])}
    frame = spark.readStream.format(FORMAT).options(**options, **limits).load().select("value")
    writer = frame.writeStream.format(FORMAT).option("service.url", given["url"]).option("topic", given["target"])
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.option("pulsar.producer.batchingMaxMessages", "2")  # several entries of each task
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

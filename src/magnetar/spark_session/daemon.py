"""The process that forks Spark's Python workers, with everything imported that our tasks use.

Spark's own (`pyspark.daemon`) imports nothing before it forks, as what is imported may start threads, and forks a worker for
each task that runs at a time, two where a query reads and writes Python data sources. Each of them then spent 0.6 s of processor
on the same imports: 5 s in all before the first micro-batch of a query with four tasks, and again for each new executor. Here
they are done once, and their memory is shared.

Threads: numpy's linear algebra, which we do not use, is set not to start any; pyarrow starts one that belongs to an allocator
which knows of `fork` (jemalloc), and which pyarrow does not use unless it is asked to.

Set as `spark.python.daemon.module` (see `session`); takes over from there as Spark's own does.
"""

import importlib
import os
from contextlib import suppress
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from pyspark import daemon

from magnetar.spark_session.worker import settle

MODULES: Final = (
    "pyspark.worker",
    "pyspark.sql.streaming.datasource",
    "pyarrow.compute",
    "magnetar.pipeline.rows",
    "magnetar.pipeline.task_read",
    "magnetar.pipeline.task_write",
    "magnetar.jobs.verify_listing",
    "magnetar.spark.format",
    "encodings.idna",
    "pandas",
)
"""What tasks import, from which the rest follows. (pyarrow asks pandas whether a list of ours is one of its own.)"""

if __name__ == "__main__":
    for module in MODULES:
        with suppress(ModuleNotFoundError):  # pandas may be missing; a task would say what else is
            importlib.import_module(module)
    settle()
    daemon.manager()

"""The process that forks Spark's Python workers, with all modules imported that Magnetar's tasks use.

Spark's own daemon (`pyspark.daemon`) imports nothing before it forks, because imported modules may start threads. It
forks a worker for each concurrent task, two if a query reads and writes Python data sources. Each worker then spends
0.6 s of processor time on the same imports: 5 s in all before the first micro-batch of a query with four tasks, and
again for each new executor. Here the imports are done once, and their memory is shared.

Threads: numpy's linear algebra, which Magnetar does not use, is set not to start any; pyarrow starts one, which belongs
to an allocator that supports `fork` (jemalloc) and that pyarrow uses only on request.

The buffers between a worker and the JVM: with long batches the JVM's own is small, because a buffer that is not full holds rows
back (`pipeline.replicate.LONG_SETTINGS`). Spark gives workers the same size. But there each batch is flushed, so a small buffer
only costs system calls: six in place of one for each Arrow batch, in both workers, and the JVM is woken by the first of them.

Set as `spark.python.daemon.module` (see `session`); after that it works as Spark's own.
"""

import importlib
import os
from contextlib import suppress
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from pyspark import daemon

from magnetar.spark_session.worker import settle

BUFFER_BYTES: Final = 64 << 10
"""The buffers between a worker and the JVM in each direction: Spark's default."""

MODULES: Final = (
    "pyspark.worker",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.worker.plan_data_source_read",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "magnetar.pipeline.datasource",
    "magnetar.pipeline.long.fetch_read",
    "magnetar.pipeline.long.fetch_write",
    "magnetar.pipeline.rows",
    "magnetar.pipeline.tasks.task_read",
    "magnetar.pipeline.tasks.task_write",
    "magnetar.jobs.verify_listing",
    "magnetar.spark.format",
    "encodings.idna",
    "pandas",
)
"""The modules that tasks import; the rest follows from them. (pyarrow asks pandas whether a list of ours is one of its
own.)
"""

if __name__ == "__main__":
    for module in MODULES:
        with suppress(ModuleNotFoundError):  # pandas may be missing; a task reports any other missing module
            importlib.import_module(module)
    settle()
    os.environ["SPARK_BUFFER_SIZE"] = str(BUFFER_BYTES)  # workers read it after they are forked
    daemon.manager()

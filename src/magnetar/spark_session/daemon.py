"""The process that forks Spark's Python workers, with all modules imported that Magnetar's tasks use.

Spark's own daemon (`pyspark.daemon`) imports nothing before it forks, because imported modules may start threads. It
forks a worker for each concurrent task, two if a query reads and writes Python data sources. Each worker then spends
0.6 s of processor time on the same imports: 5 s in all before the first micro-batch of a query with four tasks, and
again for each new executor. Here the imports are done once, and their memory is shared.

Threads: numpy's linear algebra, which Magnetar does not use, is set not to start any; pyarrow starts one, which belongs
to an allocator that supports `fork` (jemalloc) and that pyarrow uses only on request.

Set as `spark.python.daemon.module` (see `session`); after that it works as Spark's own.
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
    daemon.manager()

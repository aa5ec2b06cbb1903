"""Spark's daemon with everything imported that workers need: they are forked from it, and one that was killed is back at once."""

import pyarrow.compute  # noqa: F401
import pyspark.daemon
import pyspark.sql.types
import pyspark.worker

import tests.support.killing  # noqa: F401 - for the workers

if __name__ == "__main__":
    pyspark.daemon.manager()

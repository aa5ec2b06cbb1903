"""Everything that moves data between clusters, as PySpark jobs.

`register(spark)` makes the formats `pulsar-entries` and `pulsar` known; `replicate.run` is the pipeline; `verify.verify`
compares. `pulsar` is for applications (docs/spark.md).
"""

from typing import TYPE_CHECKING

from magnetar.spark.pulsar.keyed import deduplicate

__all__ = ["deduplicate", "register"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make Magnetar's formats known to a Spark session."""
    # Imported here, so that the CLI can ask for options and errors of this package without loading pyspark.
    from magnetar.spark.entries import register as register_entries
    from magnetar.spark.pulsar import register as register_messages

    register_entries(spark)
    register_messages(spark)

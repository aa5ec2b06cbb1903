"""The Spark format `pulsar`: reading and writing topics in Spark applications, with the official Pulsar protocol only.

`register(spark)` registers the format. `options` has the options, which are those of the JVM connector; `source` and
`sink` implement Spark's interfaces; `client` and `producing` implement the protocol. User guide: docs/spark.md.
"""

from typing import TYPE_CHECKING

from magnetar.spark.keyed import deduplicate

__all__ = ["deduplicate", "register"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make the format known to a session."""
    # Imported here, so that the command line can ask for options and errors of this package without loading pyspark.
    from magnetar.spark.format import PulsarFormat

    # Spark refuses a source that takes filters while this is off, which is its default.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PulsarFormat)

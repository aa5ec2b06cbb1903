"""Spark passes over settings that it does not know: ours are known to the Spark that is installed."""

from typing import Any

import pytest

from magnetar.spark_session.session import SETTINGS

pytestmark = pytest.mark.spark


NOT_LISTED = {
    "spark.driver.defaultJavaOptions",  # the launcher's
    "spark.executor.defaultJavaOptions",
    "spark.sql.streaming.checkpointFileManagerClass",  # read by its name
}
"""What Spark reads and has no entry of."""


def scala_object(spark: Any, name: str) -> Any:
    return spark._jvm.java.lang.Class.forName(f"org.apache.spark.{name}$").getField("MODULE$").get(None)


def test_spark_knows_every_setting_of_ours(spark: Any) -> None:
    """Some of them are no promise of Spark's; with a new version that drops one pipelines would only be slower."""
    of_sql, of_core = scala_object(spark, "sql.internal.SQLConf"), scala_object(spark, "internal.config.ConfigEntry")

    def known(key: str) -> bool:
        return of_sql.containsConfigKey(key) or of_core.findEntry(key) is not None

    assert not [key for key in SETTINGS.keys() - NOT_LISTED if not known(key)]
    assert not known("spark.sql.no.such.setting")

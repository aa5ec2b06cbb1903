"""Settings of the Spark session that depend on the environment."""

import pytest

from magnetar.spark.session import COLLECTOR, COMPILER, SETTINGS, _java


@pytest.mark.parametrize("variable", ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"])
def test_java_is_not_given_a_second_collector(variable: str) -> None:
    assert COLLECTOR in SETTINGS["spark.driver.defaultJavaOptions"]
    changed = {**SETTINGS, **_java({variable: "-Xmx1g -XX:+UseSerialGC"})}
    assert changed["spark.driver.defaultJavaOptions"] == changed["spark.executor.defaultJavaOptions"] == COMPILER
    assert {**SETTINGS, **_java({variable: "-Xmx1g -XX:+UseStringDeduplication"})} == SETTINGS

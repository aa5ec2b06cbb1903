"""Settings of the Spark session that depend on the environment."""

import os
from pathlib import Path

import pytest

from magnetar.spark_session import session
from magnetar.spark_session.session import COLLECTOR, COMPILER, SETTINGS, _java


@pytest.mark.parametrize("variable", ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"])
def test_java_is_not_given_a_second_collector(variable: str) -> None:
    assert COLLECTOR in SETTINGS["spark.driver.defaultJavaOptions"]
    changed = {**SETTINGS, **_java({variable: "-Xmx1g -XX:+UseSerialGC"})}
    assert changed["spark.driver.defaultJavaOptions"] == changed["spark.executor.defaultJavaOptions"] == COMPILER
    assert {**SETTINGS, **_java({variable: "-Xmx1g -XX:+UseStringDeduplication"})} == SETTINGS


def test_spark_finds_its_installation_without_the_archive_of_python_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    stale = tmp_path / "spark-home" / "jars"
    stale.parent.mkdir()
    stale.symlink_to(tmp_path / "of-another-version")
    for _ in range(2):  # the second session finds the folder there
        with session.slim_home(tmp_path):
            home = Path(os.environ["SPARK_HOME"])
            assert (home / "bin" / "spark-submit").is_file()
            assert list((home / "jars").glob("spark-core_*.jar"))
            assert not (home / "python").exists()
        assert "SPARK_HOME" not in os.environ


def test_an_installation_that_is_named_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with session.slim_home(tmp_path):
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert not list(tmp_path.iterdir())

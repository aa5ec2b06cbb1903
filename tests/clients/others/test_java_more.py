"""What applications do with the Java client beyond publishing and consuming (`java-more/Scenarios.java`)."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.others.conversation import Missing, java_program
from tests.support.brokers import BrokerProcess, World

pytestmark = pytest.mark.timeout(1200)

SOURCE = Path(__file__).with_name("java-more") / "Scenarios.java"
SCENARIOS = re.findall(r'ALL\.put\("(\w+)"', SOURCE.read_text())


@pytest.fixture(scope="module")
def command() -> list[str]:
    try:
        options = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        return java_program("java-more", "Scenarios", options)
    except Missing as why:
        pytest.skip(f"the Java client cannot be built here: {why}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    world = World(tmp_path_factory.mktemp("java"), ["a"])
    world.start()
    yield world["a"]
    world.close()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_as_with_pulsar(command: list[str], broker: BrokerProcess, scenario: str) -> None:
    environment = os.environ | {
        "MAGNETAR_REST": f"http://127.0.0.1:{broker.http_port}",
        "MAGNETAR_PULSAR": f"127.0.0.1:{broker.pulsar_port}",
    }
    done = subprocess.run(
        [*command, broker.url, scenario], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"[-4000:]

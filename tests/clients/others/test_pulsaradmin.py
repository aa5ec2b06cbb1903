"""The tests of Go's administration library, of which other tools are made, run against a broker."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.official.hosting import Ports
from tests.clients.official.outcomes import reason
from tests.clients.official.tools import LIBRARY, LIBRARY_VERSION, PulsarAdmin
from tests.clients.others.conversation import BUILD_S, UNREACHABLE, Missing, tool

pytestmark = pytest.mark.timeout(1200)


def module() -> Path:
    """The folder of the library's sources, in Go's own cache.

    Raises:
        Missing: there is no Go, or no registry to get it from.
    """
    command = [tool("go"), "mod", "download", "-json", f"{LIBRARY}@{LIBRARY_VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False, cwd="/")
    told = json.loads(done.stdout or "{}")
    if "Dir" not in told:
        said = (told.get("Error") or done.stderr).strip()
        if UNREACHABLE.search(said):
            raise Missing(f"{LIBRARY}: {said.splitlines()[0][:200]}")
        raise AssertionError(said)
    return Path(told["Dir"])


def taken() -> list[int]:
    """The ports of the library's tests, which are written into them, that somebody listens on."""
    found = []
    for port in Ports():
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                found.append(port)
    return found


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarAdmin]:
    """The tests, built, while a broker serves on their ports."""
    if ports := taken():
        pytest.skip(f"port {ports[0]} is taken: these tests know only Pulsar's usual ones")
    try:
        suite = PulsarAdmin(module(), tmp_path_factory.mktemp("pulsaradmin"))
    except Missing as why:
        pytest.skip(f"Go's administration library cannot be built here: {why}")
    try:
        suite.tests = suite.build()
    except SystemExit as why:
        if UNREACHABLE.search(str(why)):
            pytest.skip(f"Go's administration library cannot be built here: {str(why).splitlines()[-1][:200]}")
        raise
    with suite.brokers():
        yield suite


def test_what_does_not_pass_has_a_reason(suite: PulsarAdmin) -> None:
    assert len(suite.tests) > 50
    failed = []
    for name in suite.tests:
        outcome = suite.run(name)
        if outcome.state != "passed" and reason(outcome, suite.reasons).startswith("open:"):
            outcome = suite.run(name)  # some look for what the broker has a moment later
        if outcome.state != "passed":
            failed.append((name, reason(outcome, suite.reasons)))
    assert [one for one in failed if one[1].startswith("open:")] == []

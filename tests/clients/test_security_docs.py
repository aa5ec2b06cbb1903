"""docs/security.md, run: its commands in their order, its file, its program."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from magnetar.core import config as configuration
from magnetar.core import security
from tests.support.brokers import BrokerProcess, free_port

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def blocks(kind: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def run(folder: Path, script: str, shell: str) -> str:
    """Run a block in a folder, with `magnetar` on the path."""
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [shell, "-e", "-c", script] if shell == "sh" else [sys.executable, "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"},
        check=False,
    )
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    return done.stdout


def test_from_zero_as_the_page_says(tmp_path: Path) -> None:
    first, second, third = blocks("sh")
    assert "valid: role app" in run(tmp_path, first, "sh")
    ports = {number: str(free_port()) for number in ("6650", "6651", "8080", "8081")}

    def moved(text: str) -> str:
        return re.sub(r"(?<=:)(66|80)\d\d\b", lambda match: ports[match[0]], text)

    path = tmp_path / "clusters.toml"
    path.write_text(moved(blocks("toml")[0]))
    clusters = configuration.load(path).clusters
    found = [(name, cluster.broker("")) for name, cluster in clusters.items()]
    brokers = [BrokerProcess(path, name, broker.pulsar.port, broker.http.port) for name, broker in found]
    try:
        for broker in brokers:
            broker.start()
        assert "app" in run(tmp_path, second, "sh")
        run(tmp_path, moved(blocks("python")[0]), "python")
        assert "billing-app" in run(tmp_path, third, "sh")
    finally:
        for broker in brokers:
            broker.kill()


def test_the_files_of_the_page_are_right(tmp_path: Path) -> None:
    for text in blocks("toml"):
        assert configuration.parse(text, tmp_path / "clusters.toml")


def test_the_page_names_the_keys_that_there_are() -> None:
    tables = (
        security.AuthenticationConfig,
        security.AuthorizationConfig,
        security.TlsConfig,
        security.ClientConfig,
        security.BookieSecurity,
        security.ZooKeeperSecurityConfig,
    )
    known = {field for table in tables for field in table.__struct_fields__}
    named = set(re.findall(r"`([a-z]+_[a-z_]+)`", PAGE))
    others = {"pulsar_tls", "advertised_tls", "original_principal", "token_file", "ca_file", "magnetar_logins_total"}
    assert named <= known | others, named - known - others
    for text in blocks("toml"):
        for table in ("authentication", "authorization", "tls", "client"):
            assert set(tomllib.loads(text).get(table, {})) <= known

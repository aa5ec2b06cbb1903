"""`broker` and `up`: which configuration they choose and which children they start."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.cli.commands import broker as broker_module
from magnetar.cli.commands import up as up_module
from magnetar.cli.commands.broker import choose
from magnetar.cli.commands.up import specs_of, write_default
from magnetar.cli.processes.supervisor import Child, Spec
from magnetar.core import config
from magnetar.core.config import Config
from magnetar.core.errors import ConfigError, MagnetarError
from magnetar.core.settings import Address
from tests.support.commands import one_line
from tests.unit.cli.conftest import Answer

Run = Callable[..., Answer]

FILE = '[clusters.solo]\npulsar = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\n'
BROKERS = """\
[clusters.west]
storage = "bookkeeper"
store = "zookeeper://z:2181/west"
[clusters.west.brokers]
a = {pulsar = "h:1", http = "h:2"}
b = {pulsar = "h:3", http = "h:4"}
c = {pulsar = "other:1", http = "other:2", here = false}
"""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, str, bool]]:
    """What `magnetar broker` would have run."""
    import magnetar.app

    calls: list[tuple[Config, str, bool]] = []

    def run_broker(chosen: Config, cluster: str, insecure: bool) -> int:
        calls.append((chosen, cluster, insecure))
        return 0

    monkeypatch.setattr(magnetar.app, "run_broker", run_broker)
    return calls


def test_broker_from_a_file(run: Run, ran: list[tuple[Config, str, bool]], tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text(FILE)
    assert run("broker", "solo", "--fsync", "never", "--insecure").code == 0
    chosen, cluster, insecure = ran[0]
    assert (cluster, insecure, chosen.broker.fsync, chosen.path) == ("solo", True, "never", tmp_path / "clusters.toml")


def test_broker_without_a_file(run: Run, ran: list[tuple[Config, str, bool]], tmp_path: Path) -> None:
    assert run("broker", "us-east").code == 0
    assert ran[0][0].cluster("us-east").broker("").pulsar == Address("127.0.0.1", 6651)
    assert len(ran[0][0].links) == 6
    assert run("broker", "us-east", "--pulsar-port", "7000", "--data-dir", "d").code == 0
    assert ran[1][0].cluster("us-east").broker("").advertised == "127.0.0.1:7000"
    assert ran[1][0].data_dir == tmp_path / "d"
    assert run("broker", "mine", "--http-port", "7001").code == 0
    assert (list(ran[2][0].clusters), ran[2][0].links) == (["mine"], ())


def test_options_without_a_file_win_over_the_folders_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clusters.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    assert choose(None, "mine", None, 7000, None).path is None


def test_broker_options_that_contradict_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(FILE)
    assert "--pulsar-port is for a broker without a file" in one_line(
        run("broker", "solo", "-c", "x.toml", "--pulsar-port", "5")
    )
    assert "no cluster 'sole': did you mean 'solo'?" in one_line(run("broker", "sole", "-c", "x.toml"))
    assert run("broker", "solo", "--pulsar-port", "0").code == 2
    assert "lower-case" in one_line(run("broker", "Bad.Name"))


def test_exit_code_of_the_broker_is_the_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import magnetar.app

    monkeypatch.setattr(magnetar.app, "run_broker", lambda *_: 1)
    assert run("broker", "us-west").code == 1

    def fails(*_: object) -> int:
        raise MagnetarError("cannot listen on 127.0.0.1:6650: address already in use")

    monkeypatch.setattr(magnetar.app, "run_broker", fails)
    assert one_line(run("broker", "us-west")) == "cannot listen on 127.0.0.1:6650: address already in use"


def test_a_file_to_start_from_is_the_built_in_configuration(tmp_path: Path) -> None:
    path = write_default(tmp_path / "clusters.toml")
    found, built_in = config.load(path), config.builtin(tmp_path / "data")
    assert (found.clusters, found.links, found.namespaces) == (built_in.clusters, built_in.links, built_in.namespaces)
    assert (found.data_dir, found.replication, found.broker) == (
        built_in.data_dir,
        built_in.replication,
        built_in.broker,
    )
    with pytest.raises(ConfigError, match="exists already"):
        write_default(path)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_default(tmp_path / "nowhere" / "clusters.toml")


def test_children_of_up(tmp_path: Path) -> None:
    built_in = config.builtin(tmp_path)
    names = [(spec.name, spec.group) for spec in specs_of(built_in, None)]
    assert names == [("broker us-west", 0), ("broker us-east", 0), ("broker eu-central", 0), ("pipeline", 1)]
    path = tmp_path / "c.toml"
    path.write_text(FILE)
    (alone,) = specs_of(config.load(path), path)
    assert list(alone.command[-4:]) == ["broker", "solo", "-c", str(path)]
    path.write_text(FILE + "here = false\n")
    with pytest.raises(ConfigError, match="nothing to run on this machine"):
        specs_of(config.load(path), path)


def test_children_of_a_cluster_of_several_brokers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of this machine, and the table says which one serves."""
    path = tmp_path / "c.toml"
    path.write_text(BROKERS + FILE)
    found = config.load(path)
    specs = [spec for spec in specs_of(found, path) if not spec.group]
    assert [spec.name for spec in specs] == ["broker west/a", "broker west/b", "broker solo"]
    assert list(specs[1].command[-4:]) == ["broker", "west/b", "-c", str(path)]
    children = [Child(spec, state=state) for spec, state in zip(specs, ("standby", "ready", "ready"), strict=True)]
    up_module.show(found, children, as_json=True)
    west, other, solo = json.loads(capsys.readouterr().out)
    assert west == {"cluster": "west", "broker": "a", "state": "waits", "pulsar": "pulsar://h:1", "http": "http://h:2"}
    assert (other["broker"], other["state"]) == ("b", "serves")
    assert set(solo) == {"cluster", "pulsar", "http"}
    up_module.show(found, children, as_json=False)
    assert "serves" in capsys.readouterr().out


def test_one_of_several_brokers(run: Run, ran: list[tuple[Config, str, bool]], tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text(BROKERS)
    assert run("broker", "west/b").code == 0
    assert ran[0][1] == "west/b"
    assert "cluster west has 3 brokers: name one of them: west/a, west/b, west/c" in one_line(run("broker", "west"))
    assert "cluster west has no broker 'd': there is a, b, c" in one_line(run("broker", "west/d"))


def test_a_log_on_bookkeeper_is_not_recovered_here(run: Run, tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text(BROKERS)
    line = one_line(run("recover", "west"))
    assert "the log of cluster west is on BookKeeper" in line
    assert "`magnetar recover` is for data folders" in line


def test_up_without_spark_still_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(up_module.importlib.util, "find_spec", lambda _name: None)
    said: list[str] = []
    assert len(specs_of(config.builtin(tmp_path), None, said.append)) == 3
    assert 'pip install "magnetar[spark]"' in said[0]


def test_json_is_all_that_up_prints(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What children say, and what is said of them, goes elsewhere."""

    def specs(_config: Config, _path: Path | None, say: Callable[[str], None]) -> list[Spec]:
        say("no pipeline")
        return [Spec("one", [sys.executable, "-c", "print('ready'); print('a line')"], "ready")]

    monkeypatch.setattr(up_module, "specs_of", specs)
    answer = run("up", "--json", "--init", "--no-restart")
    assert [row["cluster"] for row in answer.json] == ["us-west", "us-east", "eu-central"]
    assert answer.err.splitlines() == [
        "wrote clusters.toml", "no pipeline", "a line", "one ended: exit code 0; not restarted (--no-restart)",
    ]  # fmt: skip


def test_the_ready_line_is_the_one_the_broker_prints() -> None:
    import inspect

    import magnetar.app

    assert "ready {app.broker.service_url}" in inspect.getsource(magnetar.app)
    assert "waits {self.endpoints.service_url}" in inspect.getsource(magnetar.app)
    assert up_module.BROKER_WAITS == " waits pulsar://"
    assert up_module.BROKER_READY == " ready pulsar://"
    assert broker_module.EXAMPLE.startswith("magnetar broker")

"""What is true of every command: help with an example, exit codes, one line for what fails, a quick start."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from magnetar.cli.commands import all as commands
from magnetar.cli.commands import replicate, up
from magnetar.cli.commands.all import ORDER, app
from magnetar.core.errors import MagnetarError
from tests.support.commands import LEAVES, one_line
from tests.unit.cli.conftest import Answer

Run = Callable[..., Answer]
ROOT = Path(__file__).resolve().parents[3]


def test_help_shows_the_commands_in_their_order(run: Run) -> None:
    answer = run("--help")
    assert answer.code == 0
    shown = [line.split()[0] for line in answer.out.split("Commands:")[1].splitlines() if line.startswith("  ")]
    assert tuple(name for name in shown if name != "Example:") == ORDER
    root: Any = typer.main.get_command(app)
    assert set(ORDER) == set(root.commands)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_an_example_that_names_it(words: list[str], run: Run) -> None:
    answer = run(*words, "--help")
    assert answer.code == 0
    example = " ".join(answer.out.split("Example: ")[1].split())
    assert example.startswith("magnetar " + " ".join(words))


@pytest.mark.parametrize("words", [["foo"], ["up", "--foo"], ["broker"], ["links", "foo"], ["status", "--every", "x"]])
def test_wrong_usage_is_exit_code_2(words: list[str], run: Run) -> None:
    answer = run(*words)
    assert answer.code == 2
    assert "Usage: magnetar" in answer.err
    assert "Traceback" not in answer.err


def test_no_words_at_all_show_the_help(run: Run) -> None:
    answer = run()
    assert "Usage: magnetar" in answer.out + answer.err
    assert answer.code == 2


def test_version(run: Run) -> None:
    answer = run("--version")
    assert (answer.code, answer.out.split()[0]) == (0, "magnetar")


def test_a_wrong_file_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text("[brokr]")
    for words in (["up"], ["broker", "a"], ["replicate"], ["status"], ["verify", "t"], ["links", "list"]):
        assert "brokr: unknown key: did you mean 'broker'?" in one_line(run(*words))


def test_a_folder_that_is_gone_is_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for words in (["up"], ["broker", "a"], ["status"], ["topics", "list"]):
        assert one_line(run(*words)).startswith("the working folder cannot be used (No such file or directory)")


def test_wrong_policies_name_the_file(run: Run, tmp_path: Path) -> None:
    cluster = '[clusters.a]\npulsar = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\n'
    (tmp_path / "clusters.toml").write_text(cluster + "[policies]\nx = 1")
    for words in (["up"], ["broker", "a"], ["status"]):
        assert one_line(run(*words)).startswith(
            ("clusters.toml: policies.x: ", f"{tmp_path}/clusters.toml: policies.x: ")
        )


def test_an_unexpected_error_is_one_line_and_a_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "found_file", lambda: 1 / 0)
    line = one_line(run("up"))
    assert line.startswith("unexpected ZeroDivisionError: division by zero; details in ")
    path = Path(line.split("details in ")[1])
    assert "Traceback" in path.read_text()
    path.unlink()


def test_debug_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "found_file", lambda: 1 / 0)
    monkeypatch.setenv("MAGNETAR_DEBUG", "1")
    answer = run("up")
    assert answer.code == 1
    assert "Traceback" in answer.err


def test_an_explained_error_of_several_lines_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise MagnetarError("first\nsecond")

    monkeypatch.setattr(up, "found_file", fail)
    assert one_line(run("up")) == "first second"


def test_a_command_that_needs_spark_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_load: object) -> int:
        return commands_with_spark(lambda: (_ for _ in ()).throw(ModuleNotFoundError("no", name="pyspark.sql")))

    from magnetar.cli.shared.common import with_spark as commands_with_spark

    monkeypatch.setattr(replicate, "with_spark", missing)
    assert 'pip install "magnetar[spark]"' in one_line(run("replicate"))


def test_unknown_link_and_cluster(run: Run) -> None:
    assert "did you mean 'us-west:us-east'?" in one_line(run("replicate", "--link", "us-west:us-eest"))
    assert "no link 'a'" in one_line(run("links", "pause", "a"))


def test_help_imports_nothing_heavy() -> None:
    """Spark, an HTTP server or the official client would make every command start late."""
    code = (
        "import sys, magnetar.cli.commands.all\n"
        "print([name for name in ('pyspark', 'aiohttp', 'asyncio', 'pulsar', 'pandas', 'pyarrow', 'google.protobuf')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_reference_is_what_the_help_says() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_reference.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_output_that_nobody_reads_is_no_error(tmp_path: Path) -> None:
    code = "import sys; from magnetar import cli; sys.exit(cli.run(['--help']))"
    done = subprocess.run(
        ["/bin/sh", "-c", f'{{ {sys.executable} -c "{code}"; echo $? >{tmp_path}/code; }} | head -n 1 >/dev/null'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert (tmp_path / "code").read_text().strip() == "0"
    assert json.dumps(commands.ORDER)

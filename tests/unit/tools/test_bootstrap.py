"""Which Python `make setup` takes: tools/bootstrap.sh, with Pythons that tell what others would."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BOOTSTRAP = Path(__file__).parents[3] / "tools" / "bootstrap.sh"
SYSTEM = Path(f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}")
PROFILED = "--enable-optimizations"


def python(folder: Path, name: str, built_with: str, version: str = "") -> Path:
    """A Python that was compiled at home with these arguments, and passes for an older one if a version is given."""
    folder.mkdir(exist_ok=True)
    lies = f"sys.base_prefix = '/home/of/pyenv'; sysconfig.get_config_var = lambda name: '{built_with}'"
    if version:
        lies += f"; sys.version_info = ({version})"
    made = folder / name
    made.write_text(f"""#!/bin/sh
[ "$1" = -c ] || exit 2
code=$2 exec {sys.executable} -c "import os, sys, sysconfig; {lies}; exec(os.environ['code'])"
""")
    made.chmod(0o755)
    return made


def told(path: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the script says of the Pythons in a folder that comes first."""
    found = os.pathsep.join([*([str(path)] if path else []), "/usr/bin", "/bin"])
    return subprocess.run(
        ["sh", BOOTSTRAP, "--python"],
        env={"PATH": found, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def system_is_there() -> bool:
    """Whether this machine's system has a Python of this version, with what makes environments."""
    if not SYSTEM.exists():
        return False
    return subprocess.run([SYSTEM, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode == 0


def test_one_that_was_compiled_without_its_profile_gives_way_to_the_systems(tmp_path: Path) -> None:
    slow = python(tmp_path, "python3", "--prefix=/home/of/pyenv")
    assert told(tmp_path).stdout.strip() == str(SYSTEM if system_is_there() else slow)


def test_one_that_was_compiled_with_it_is_taken(tmp_path: Path) -> None:
    fast = python(tmp_path, "python3", f"--prefix=/home/of/pyenv {PROFILED}")
    assert told(tmp_path).stdout.strip() == str(fast)


def test_an_old_one_is_passed_over(tmp_path: Path) -> None:
    python(tmp_path, "python3", PROFILED, version="3, 9")
    newer = python(tmp_path, "python3.14", PROFILED)
    assert told(tmp_path).stdout.strip() == str(newer)


@pytest.mark.parametrize("built_with", ["", PROFILED])
def test_what_the_user_names_is_taken(tmp_path: Path, built_with: str) -> None:
    named = python(tmp_path, "mine", built_with)
    assert told(PYTHON=str(named)).stdout.strip() == str(named)


def test_what_the_user_names_must_be_one(tmp_path: Path) -> None:
    old = python(tmp_path, "old", PROFILED, version="3, 9")
    for wrong in (str(old), str(tmp_path / "nothing")):
        answer = told(PYTHON=wrong)
        assert answer.returncode == 1
        assert (
            answer.stderr
            == f"setup: PYTHON={wrong} is no Python 3.11 or newer: give the path of one, or leave it unset\n"
        )


def test_other_arguments_are_not_known() -> None:
    answer = subprocess.run(["sh", BOOTSTRAP, "--help-me"], capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stderr) == (1, "setup: --help-me: what is that? There are --python and --pure\n")

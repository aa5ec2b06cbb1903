"""What the wheel of `magnetar` holds: the product alone. No simulator, no example, no test's tool."""

import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from magnetar import FORM
from magnetar.runtime.interpreter.compiled import COMPILED, SUFFIX

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = ("magnetar/sim/", "magnetar/cli/demo/", "magnetar_sim/", "tests/", "bench/", "examples/")
"""Where a file of a wheel may not be."""

KITS = {"testing", "conformance", "fakes", "conftest"}
"""Names of modules and packages that only tests need: those are in `tests/support` and in the simulator."""


def built(folder: Path, target: Path, **environment: str) -> ZipFile:
    """The wheel of the distribution whose `pyproject.toml` is in `folder`."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=folder, env=os.environ | environment, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (wheel,) = target.glob("*.whl")
    return ZipFile(wheel)


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return built(ROOT, tmp_path_factory.mktemp("product"))


def sources(wheel: ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_the_product(product: ZipFile) -> None:
    package = ROOT / "src" / "magnetar"
    assert sources(product) == {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "magnetar/broker/broker.py" in sources(product)


def test_the_wheel_holds_nothing_else(product: ZipFile) -> None:
    assert [name for name in sorted(sources(product)) if name.startswith(FOREIGN)] == []


def test_the_wheel_holds_no_kit_for_tests(product: ZipFile) -> None:
    def words(name: str) -> set[str]:
        return set(re.split(r"[/._]", name))

    assert words("magnetar/storage/testing.py") & KITS and words("magnetar/files_conformance.py") & KITS
    assert [name for name in sorted(sources(product)) if words(name) & KITS] == []


def test_no_module_of_the_wheel_imports_what_tests_are_made_of(product: ZipFile) -> None:
    tools = (b"unittest", b"import pytest", b"from pytest", b"hypothesis", b"magnetar_sim")
    found = [
        f"{name}: {tool.decode()}"
        for name in sorted(sources(product))
        if name.endswith(".py")
        for tool in tools
        if tool in product.read(name)
    ]
    assert found == []


def test_the_wheel_fits_every_machine(product: ZipFile) -> None:
    assert Path(product.filename or "").name.endswith("-py3-none-any.whl")


@pytest.mark.skipif(FORM.name != COMPILED, reason="the modules are not compiled, and it takes minutes: `make compiled`")
def test_a_wheel_with_compiled_modules_runs_them(tmp_path: Path, product: ZipFile) -> None:
    wheel = built(ROOT, tmp_path, MAGNETAR_WHEEL="compiled")
    assert "none-any" not in (wheel.filename or "")
    more = sources(wheel) - sources(product)
    assert {name.partition("/_compiled/")[0] for name in more} == {"magnetar"}
    assert len([name for name in more if name.endswith(SUFFIX)]) == len(FORM.modules) + 1
    wheel.extractall(tmp_path / "site")
    code = "import magnetar, magnetar.storage.topiclog as t; print(magnetar.FORM, t.__file__, sep=';')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    form, file = done.stdout.strip().split(";")
    assert form == str(FORM)
    assert Path(file).is_relative_to(tmp_path / "site" / "magnetar" / "_compiled")


def test_the_simulator_has_a_wheel_of_its_own(tmp_path: Path) -> None:
    wheel = built(ROOT / "simulator", tmp_path)
    assert {name.split("/")[0] for name in sources(wheel)} == {"magnetar_sim"}
    assert "magnetar_sim/__main__.py" in sources(wheel)

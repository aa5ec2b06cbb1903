"""Compiled modules: used only while every source is the one that was compiled; else pure Python runs."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor import Descriptor

from magnetar import cli
from magnetar.runtime.interpreter import compiled
from magnetar.wire import pulsar_pb2 as pb
from tests.support import forms
from tests.support.sources import GROUPS, ROOT
from tests.support.tools import tool

SWITCH = ("__init__.py", "runtime/__init__.py", "runtime/interpreter/__init__.py", "runtime/interpreter/compiled.py")
"""The sources that decide which form runs."""

OPTIMISED = """\
import sys
from magnetar.constants import FACTOR

def product(number: int) -> int:
    return number * FACTOR
"""


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compiled.VARIABLE, raising=False)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with two sources and a compiled module."""
    package = tmp_path / "src" / "magnetar"
    package.mkdir(parents=True)
    (package / "one.py").write_text("ONE = 1\n")
    (package / "two.py").write_text("TWO = 2\n")
    names = ["one.py", "two.py"]
    place = compiled.checkout_folder(package)
    made = place / "made"
    (made / "magnetar").mkdir(parents=True)
    (made / f"magnetar__mypyc{compiled.SUFFIX}").touch()
    (made / "magnetar" / f"one{compiled.SUFFIX}").touch()
    found = compiled.sources_hash(package, names)
    manifest = compiled.Manifest("made", found, ["magnetar__mypyc", "magnetar.one"], names)
    compiled.manifest_file(place).write_text(manifest.text())
    return package


def form(package: Path) -> compiled.Form:
    return compiled.chosen(package, [package / "_compiled", compiled.checkout_folder(package)])[0]


def test_compiled_modules_are_found_while_their_sources_are_the_same(package: Path) -> None:
    found, finder = compiled.chosen(package, [compiled.checkout_folder(package)])
    assert (found.name, found.reason, found.modules) == (compiled.COMPILED, "", ("magnetar.one",))
    assert finder is not None
    spec = finder.find_spec("magnetar.one", None)
    assert spec is not None
    assert spec.origin == str(package.parents[1] / "build" / "compiled" / "made" / "magnetar" / f"one{compiled.SUFFIX}")
    assert finder.find_spec("magnetar.two", None) is None


@pytest.mark.parametrize("name", ["one.py", "two.py"])
def test_an_edit_makes_it_pure_python_even_with_the_old_size_and_time(package: Path, name: str) -> None:
    path = package / name
    before = path.stat()
    path.write_text(path.read_text().replace("=", "!"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert form(package).name == compiled.PURE
    assert "make setup" in form(package).reason
    assert form(package).stale
    path.write_text(path.read_text().replace("!", "="))
    assert form(package).name == compiled.COMPILED


def test_what_is_missing_or_damaged_makes_it_pure_python(package: Path) -> None:
    source, place = package / "two.py", compiled.checkout_folder(package)
    source.rename(package / "elsewhere.py")
    assert form(package).name == compiled.PURE
    (package / "elsewhere.py").rename(source)
    module = place / "made" / "magnetar" / f"one{compiled.SUFFIX}"
    module.rename(place / "elsewhere")
    assert form(package).reason == "compiled modules are missing; `make setup` compiles them"
    assert form(package).stale
    (place / "elsewhere").rename(module)
    assert form(package).name == compiled.COMPILED
    manifest = compiled.manifest_file(place)
    for damaged in (b"", b"made\n", b"\xff\n\n\n\n", manifest.read_bytes()[:-9]):
        manifest.write_bytes(damaged)
        assert form(package).name == compiled.PURE
    manifest.unlink()
    assert form(package).reason == "no modules are compiled here"
    assert not form(package).stale, "nothing is wrong: there is no C compiler"


def test_content_that_moves_from_one_source_to_the_next_is_another_hash(package: Path) -> None:
    names = ["one.py", "two.py"]
    before = compiled.sources_hash(package, names)
    (package / "one.py").write_text("ONE = 1\nTWO = 2\n")
    (package / "two.py").write_text("")
    assert compiled.sources_hash(package, names) != before


@pytest.mark.parametrize("value", ["no", "0", "false", "OFF"])
def test_the_variable_switches_it_off(
    package: Path,
    compiling: ModuleType,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(compiled.VARIABLE, value)
    assert str(form(package)) == f"pure Python: MAGNETAR_COMPILE={value}"
    monkeypatch.setattr(sys, "argv", ["compile_modules.py"])
    assert compiling.main() == 0
    assert capsys.readouterr().out == f"pure Python: MAGNETAR_COMPILE={value}\n"


@pytest.mark.parametrize("value", ["", "yes", "quick"])
def test_other_values_leave_it_on(package: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, value)
    assert form(package).name == compiled.COMPILED
    assert compiled.problem() == ""


def test_a_value_that_means_nothing_ends_commands_and_compiling(
    compiling: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "maybe")
    assert cli.run(["--version"]) == 1
    line = "MAGNETAR_COMPILE=maybe: it should be yes, no or quick\n"
    assert capsys.readouterr().err == f"magnetar: {line}"
    monkeypatch.setattr(sys, "argv", ["compile_modules.py"])
    with pytest.raises(SystemExit):
        compiling.main()
    assert capsys.readouterr().err.endswith(f"error: {line}")


def test_a_form_says_what_it_is() -> None:
    assert str(compiled.Form("", ["magnetar.one", "magnetar.two"])) == "2 modules compiled"


# ------------------------------------------------------------------------------------------------------------ compiling


@pytest.fixture
def compiling() -> ModuleType:
    return tool("compile_modules")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "quick")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one module to compile, and one that it takes a constant from."""
    package = tmp_path / "src" / "magnetar"
    (package / "runtime" / "interpreter").mkdir(parents=True)
    for name in SWITCH:
        (package / name).write_bytes((ROOT / "src" / "magnetar" / name).read_bytes())
    (package / "optimised.py").write_text(OPTIMISED)
    (package / "constants.py").write_text("from typing import Final\n\nFACTOR: Final = 7\n")
    (package / "other.py").write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text('[tool.magnetar.compile]\nmodules = ["magnetar.optimised"]\n[tool.mypy]\n')
    return tmp_path


def test_a_module_depends_on_all_that_it_imports(checkout: Path, compiling: ModuleType) -> None:
    package = checkout / "src" / "magnetar"
    (package / "parts").mkdir()
    (package / "parts" / "__init__.py").touch()
    (package / "parts" / "far.py").write_text("def f() -> None:\n    from magnetar.parts import near\n")
    (package / "parts" / "near.py").touch()
    (package / "parts" / "near.pyi").touch()
    (package / "constants.py").write_text("import magnetar.parts.far\n")
    assert compiling.closure(checkout, ["magnetar.optimised"]) == [
        "__init__.py", "constants.py", "optimised.py",
        "parts/__init__.py", "parts/far.py", "parts/near.py", "parts/near.pyi",
        *SWITCH[1:],
    ]  # fmt: skip


def test_a_module_that_does_not_exist_is_named(checkout: Path, compiling: ModuleType) -> None:
    with pytest.raises(compiling.NotCompiledError, match="lists magnetar.gone, which does not exist"):
        compiling.closure(checkout, ["magnetar.gone"])


def result(checkout: Path) -> list[str]:
    """The form that a process runs, the suffix of the module, and what it computes."""
    code = "import magnetar, magnetar.optimised as o; print(magnetar.FORM.name, o.__file__[-3:], o.product(6), sep=';')"
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(checkout / "src")},
        check=True, capture_output=True, text=True, timeout=120,
    ).stdout.strip().split(";")  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_compiled_and_then_edited(checkout: Path, compiling: ModuleType) -> None:
    try:
        compiling.check_tools()
    except compiling.MissingToolError as error:
        pytest.skip(str(error))
    assert result(checkout) == ["pure Python", ".py", "42"]
    folder = compiling.build(checkout)
    assert compiling.up_to_date(checkout)
    assert result(checkout) == ["compiled", ".so", "42"]
    (checkout / "src" / "magnetar" / "other.py").write_text("x = 2\n")
    assert result(checkout)[0] == "compiled", "the module does not import it"
    # A constant that the compiler wrote into the machine code: only the hash of the other source can tell.
    constants = checkout / "src" / "magnetar" / "constants.py"
    constants.write_text(constants.read_text().replace("7", "8"))
    assert result(checkout) == ["pure Python", ".py", "48"]
    assert not compiling.up_to_date(checkout)
    assert compiling.build(checkout) == folder
    assert result(checkout) == ["compiled", ".so", "48"]
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith("building-")) == []


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_module_that_cannot_be_compiled_leaves_pure_python(checkout: Path, compiling: ModuleType) -> None:
    try:
        compiling.check_tools()
    except compiling.MissingToolError as error:
        pytest.skip(str(error))
    (checkout / "src" / "magnetar" / "optimised.py").write_text(OPTIMISED + "\nproduct('no number')\n")
    with pytest.raises(compiling.NotCompiledError, match="log.txt says why"):
        compiling.build(checkout)
    assert "no number" not in result(checkout)


def result_of(checkout: Path, compiling: ModuleType, level: str) -> None:
    """Write what a compilation of that level leaves, without a compiler."""
    package = checkout / "src" / "magnetar"
    files, place = compiling.closure(checkout, ["magnetar.optimised"]), compiled.checkout_folder(package)
    found = compiled.sources_hash(package, files)
    name = compiling.key(found, ["magnetar.optimised"], level)
    (place / name).mkdir(parents=True)
    compiled.manifest_file(place).write_text(compiled.Manifest(name, found, ["magnetar.optimised"], files).text())


def test_modules_that_were_not_optimised_are_good_for_tests_alone(
    checkout: Path, compiling: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    result_of(checkout, compiling, compiling.QUICK)
    assert not compiling.up_to_date(checkout)
    monkeypatch.setenv(compiled.VARIABLE, "quick")
    assert compiling.up_to_date(checkout)
    result_of(checkout, compiling, compiling.LEVEL)
    assert compiling.up_to_date(checkout)
    monkeypatch.delenv(compiled.VARIABLE)
    assert compiling.up_to_date(checkout)


@pytest.mark.parametrize("named", [True, False])
def test_without_a_c_compiler_one_line_says_so(
    compiling: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, named: bool
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["compile_modules.py"])
    monkeypatch.setattr(compiling, "up_to_date", lambda _root: False)
    if named:
        monkeypatch.setenv("CC", "/nowhere/gcc -m64")
    else:
        monkeypatch.delenv("CC", raising=False)
    assert compiling.main() == 0
    assert capsys.readouterr().out == "pure Python: there is no C compiler (Debian, Ubuntu: apt install gcc)\n"


# ---------------------------------------------------------------------------------------------------------------- lists


def test_the_listed_modules_are_sorted_and_deterministic_ones(compiling: ModuleType) -> None:
    listed = compiling.modules()
    assert listed == sorted(set(listed))
    runtime = next(rank for rank, names in enumerate(GROUPS) if "runtime" in names)
    left = {name for names in GROUPS[:runtime] for name in names}
    assert [name for name in listed if name.split(".")[1] not in left] == []
    assert len(compiling.closure(ROOT, listed)) > len(listed)


NO_MESSAGES_TEXT = {
    "magnetar.broker.session.persistent": {"self.producer_name", "self._domain.producer_name"},  # functions
    "magnetar.broker.session.producers": {
        "command.producer_name",
        "pair.key",
        "pair.value",
    },  # a command: it was checked
    "magnetar.broker.session.session": {"services.context.uuid"},  # the cluster's own
    "magnetar.broker.subscriptions.consumer": {"pair.key", "pair.value"},  # a command
    "magnetar.broker.subscriptions.dispatch.hashing": {"chunk.uuid"},  # text by then (`dispatch.chunks`)
    "magnetar.wire.metadata": {"seen.replicate_to", "seen.partition_key"},  # whether there is one; read as `Any`
}
"""Attributes of compiled modules that are called as a text of a message's metadata, and are none, or none that is relied on."""


def texts(kind: Descriptor, seen: set[str]) -> Iterator[str]:
    """The names of the text fields of a kind of message, at any depth."""
    if kind.full_name not in seen:
        seen.add(kind.full_name)
        for field in kind.fields:
            if field.type == field.TYPE_STRING:
                yield field.name
            elif field.message_type is not None:
                yield from texts(field.message_type, seen)


def test_compiled_modules_rely_on_no_text_of_a_messages_metadata(compiling: ModuleType) -> None:
    """Texts of commands are checked when they arrive. Those of messages are not, and may be bytes (decision 57)."""
    named = {name for kind in (pb.MessageMetadata, pb.SingleMessageMetadata) for name in texts(kind.DESCRIPTOR, set())}
    found: dict[str, set[str]] = {}
    for module in compiling.modules():
        path = compiling.path_of(ROOT, module)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in named:
                found.setdefault(module, set()).add(ast.unparse(node))
    assert found == NO_MESSAGES_TEXT


def test_compiled_modules_cast_nothing(compiling: ModuleType) -> None:
    """`typing.cast` is checked in compiled form: it fails where it names a type that the object does not have."""
    found = [
        f"{module}:{node.lineno}"
        for module in compiling.modules()
        for node in ast.walk(ast.parse(compiling.path_of(ROOT, module).read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("cast", "typing.cast")
    ]
    assert found == []


def test_compiled_modules_have_no_class_whose_annotations_are_read_at_run_time(compiling: ModuleType) -> None:
    """In compiled form `list[tuple[int, bytes]]` is `list` there: msgspec would neither convert nor check what is inside."""
    found = [
        f"{module}:{node.lineno}"
        for module in compiling.modules()
        for node in ast.walk(ast.parse(compiling.path_of(ROOT, module).read_text()))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).rpartition(".")[2] in ("Struct", "TypedDict") for base in node.bases)
    ]
    assert found == []


def test_the_tests_for_pure_python_exist() -> None:
    for name in forms.PURE:
        path, _, function = name.partition("::")
        assert (ROOT / path).exists(), name
        assert not function or f"def {function}" in (ROOT / path).read_text(), name

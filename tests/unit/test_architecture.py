"""docs/architecture.md and docs/glossary.md agree with the sources: what they name is there, and nothing is left out.

Moves and renames make these tests fail. The remedy is to change the page.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.support.sources import GROUPS, PACKAGE, RANKS, ROOT, modules

ARCHITECTURE: Final = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
GLOSSARY: Final = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")

FILE: Final = re.compile(r"(?<![\w./-])(?:[\w-]+/)*[\w-]+\.py\b")
FOLDER: Final = re.compile(r"`((?:[\w-]+/)+)`")
QUOTED: Final = re.compile(r"`([^`\n]+)`")
METHOD: Final = re.compile(r"[A-Z]\w*[a-z]\w*(?:\.\w+)?")
FUNCTION: Final = re.compile(r"[a-z_]+(?:\.[a-z_]+)?")

NOT_OURS: Final = frozenset({"Spark", "Pulsar"})
"""Quoted names that no source defines."""


def resolved(path: str) -> Path | None:
    """A file or folder as the page names it: below the package, or from the root of the repository on."""
    return next((base / path for base in (PACKAGE, ROOT) if (base / path).exists()), None)


def tree(path: Path) -> ast.Module:
    """Parsed, if possible by the tests of the structure, which share it."""
    if path.is_relative_to(PACKAGE):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        return modules()[".".join(part for part in parts if part != "__init__")]
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def definitions(path: Path) -> dict[str, set[str]]:
    """Of one file: class -> its methods and attributes, "" -> functions."""
    found: dict[str, set[str]] = {"": set()}
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[""].add(node.name)
        elif isinstance(node, ast.ClassDef):
            members = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
            members |= {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
            found[node.name] = members
            found[node.name].update(f"<{base.id}" for base in node.bases if isinstance(base, ast.Name))
    return found


@cache
def classes() -> dict[str, list[set[str]]]:
    """All classes of the product by name."""
    found: dict[str, list[set[str]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            for name, members in definitions(path).items():
                if name:
                    found.setdefault(name, []).append(members)
    return found


def has(members: set[str], method: str) -> bool:
    """Whether a class or one of its bases defines a method."""
    if method in members:
        return True
    bases = [member[1:] for member in members if member.startswith("<")]
    return any(has(inherited, method) for base in bases for inherited in classes().get(base, ()))


def rows() -> list[tuple[int, str]]:
    """(number, text) of every line of the page that names a file and something defined in it."""
    return [(number, line) for number, line in enumerate(ARCHITECTURE.splitlines(), 1) if FILE.search(line)]


def test_every_file_and_folder_is_there() -> None:
    named = set(FILE.findall(ARCHITECTURE)) | set(FOLDER.findall(ARCHITECTURE))
    missing = sorted(path for path in named if resolved(path) is None)
    assert len(named) > 50
    assert not missing


def test_every_class_and_method_is_there() -> None:
    missing = []
    for quoted in QUOTED.findall(ARCHITECTURE):
        if METHOD.fullmatch(quoted) and quoted not in NOT_OURS:
            name, _, method = quoted.partition(".")
            if not any(not method or has(members, method) for members in classes().get(name, ())):
                missing.append(quoted)
    assert not missing


@pytest.mark.parametrize(("number", "line"), rows())
def test_what_a_line_names_is_in_a_file_that_it_names(number: int, line: str) -> None:
    files = [path for name in FILE.findall(line) if (path := resolved(name)) is not None]
    here: dict[str, set[str]] = {}
    for path in files:
        for name, members in definitions(path).items():
            here.setdefault(name, set()).update(members)
    where = line.split("|")[2] if line.startswith("|") and line.count("|") > 4 else ""
    for quoted in QUOTED.findall(where):
        name, _, method = quoted.partition(".")
        if METHOD.fullmatch(quoted):
            assert name in here, f"docs/architecture.md:{number}: {name} is in none of the files that the line names"
            assert not method or has(here[name], method), f"docs/architecture.md:{number}: {quoted} is not there"
        elif FUNCTION.fullmatch(quoted):
            assert (method or name) in here[""], f"docs/architecture.md:{number}: no file of the line has {quoted}"


def test_functions_that_are_named_with_their_module_are_there() -> None:
    modules = {path.stem: path for path in sorted(PACKAGE.rglob("*.py"))}
    for quoted in QUOTED.findall(ARCHITECTURE):
        module, _, name = quoted.partition(".")
        if FUNCTION.fullmatch(quoted) and name and name != "py" and module in modules:
            assert any(name in definitions(path)[""] for path in PACKAGE.rglob(f"{module}.py")), quoted


def first_column(heading: str) -> list[str]:
    """Of the table below a heading, without what stands around the names."""
    part = ARCHITECTURE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [quoted for line in part.splitlines() if line.startswith("| `") for quoted in QUOTED.findall(line)[:1]]


def entries(folder: Path) -> set[str]:
    """Packages and modules of a folder, as the page writes them."""
    found = {f"{path.name}/" for path in folder.iterdir() if (path / "__init__.py").exists()}
    return found | {path.name for path in folder.glob("*.py") if not path.name.startswith("__")}


def test_every_package_has_its_subject_in_import_order() -> None:
    described = first_column("The packages")
    assert set(described) == entries(PACKAGE)
    order = {name: rank for rank, names in enumerate(GROUPS) for name in names}
    ranks = [order[name.removesuffix("/").removesuffix(".py")] for name in described]
    assert ranks == sorted(ranks)


def test_every_room_of_the_broker_has_its_subject_in_import_order() -> None:
    described = [name.removeprefix("broker/") for name in first_column("The rooms of `broker/`")]
    assert set(described) == entries(PACKAGE / "broker")
    order = {name: rank for rank, names in enumerate(RANKS) for name in names}
    ranks = [order[name.removesuffix("/").removesuffix(".py")] for name in described]
    assert ranks == sorted(ranks)


# ----------------------------------------------------------------------------------------------------------- the glossary


def tables() -> list[list[tuple[str, str]]]:
    """(word, meaning) of each table of the glossary."""
    found = []
    for part in GLOSSARY.split("\n## ")[1:]:
        lines = [line for line in part.splitlines() if line.startswith("| ")]
        found.append([(cells[1].strip(), cells[2].strip()) for line in lines[2:] if (cells := line.split("|", 2))])
    return found


def test_the_words_are_sorted_and_each_stands_once() -> None:
    words = [[word for word, _ in table] for table in tables()]
    assert len(words) == 2
    for column in words:
        assert column == sorted(column, key=lambda word: word.lower().replace("-", " "))
    everything = [word for column in words for word in column]
    assert len(everything) == len(set(everything)) > 100


def test_every_word_is_used() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md"]
    text = "\n".join(
        path.read_text(encoding="utf-8").lower()
        for path in [*pages, *PACKAGE.rglob("*.py"), ROOT / "README.md"]
        if not path.name.endswith("_pb2.py")
    )
    text = re.sub(r"[\s_]+", " ", text)
    for table in tables():
        for words, _ in table:
            for word in [words] if words.startswith("(") else words.replace("_", " ").split(", "):
                assert re.search(rf"(?<!\w){re.escape(word.lower())}", text), f"nothing uses the word {word!r}"


def test_every_meaning_is_short() -> None:
    for table in tables():
        for word, meaning in table:
            assert 10 < len(meaning) < 320, word

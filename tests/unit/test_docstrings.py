"""What docstrings and comments name exists: `module.Name`, `Class.member`, and the parameters under `Args:`.

Renames make these tests fail. The remedy is to change the text.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Final

import pytest

from tests.support.sources import PACKAGES, ROOT, modules

QUOTED: Final = re.compile(r"`((?:[a-z_]\w*\.)*)([A-Z]\w*)((?:\.[a-z_]\w*)*)(?:\(\))?`")
"""Modules, a class or constant, and its members: each with its dots."""

FUNCTION: Final = re.compile(r"`((?:[a-z_]\w*\.){2,})([a-z_]\w*)(?:\(\))?`")
"""A module in its package, and a function of it or a further module. Of fewer parts the first may be a variable."""

SUFFIXES: Final = ("md", "py", "proto", "toml")
"""What stands behind the dot of a file's name."""


def texts() -> Iterator[tuple[str, str]]:
    """(file and line, docstring or comment) of the product and its simulator."""
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            if path.name.endswith("_pb2.py"):
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if "`" in line:
                    yield f"{path.relative_to(ROOT)}:{number}", line


@cache
def defined() -> dict[str, dict[str, set[str]]]:
    """Module -> what it defines or imports at its top -> members, for classes."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, tree in modules().items():
        top = found[name] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                top.setdefault(node.name, set()).update(members(node))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                top.setdefault(node.name, set())
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for part in ast.walk(target):
                        if isinstance(part, ast.Name):
                            top.setdefault(part.id, set())
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    top.setdefault(alias.asname or alias.name, set())
    return found


def members(node: ast.ClassDef) -> set[str]:
    """Methods, fields and attributes of a class, and the names of its bases."""
    found = {base.id for base in node.bases if isinstance(base, ast.Name)}
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(part.name)
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            found.add(part.attr)
    return found


@cache
def classes() -> dict[str, set[str]]:
    """Class -> members, of all classes of that name together."""
    found: dict[str, set[str]] = {}
    for top in defined().values():
        for name, inside in top.items():
            if inside:
                found.setdefault(name, set()).update(inside)
    return found


def has(name: str, member: str) -> bool:
    """Whether a class, or a base of it, has a member."""
    inside = classes().get(name, set())
    return member in inside or any(has(base, member) for base in inside & classes().keys() - {name})


def fitting(module: str) -> list[str]:
    """The modules whose names end with these parts."""
    return [name for name in defined() if f".{name}".endswith(f".{module}")]


def unresolved(line: str) -> Iterator[str]:
    """What is wrong with the names that a line quotes."""
    for prefix, name, rest in QUOTED.findall(line):
        module, member = prefix.rstrip("."), rest.lstrip(".").partition(".")[0]
        places = fitting(module)
        if module and not places and find_spec(module.partition(".")[0]) is None:
            yield f"there is no module {module}"
        elif module and places and not any(name in defined()[place] for place in places):
            yield f"{module} has no {name}"
        elif member and name in classes() and not has(name, member):
            yield f"{name} has no {member}"
    for prefix, name in FUNCTION.findall(line):
        module = prefix.rstrip(".")
        places = [] if name in SUFFIXES else fitting(module)
        if places and not any(name in defined()[place] for place in places) and not fitting(f"{module}.{name}"):
            yield f"{module} has no {name}"


def test_quoted_names_exist() -> None:
    wrong = [f"{where}: {what}" for where, line in texts() for what in unresolved(line)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("line", [
    "see `keeper.Share`", "`cursor_flusher.Shared`", "(`CursorFlusher.keep`)", "`broker.session.session.frames`",
    "`broker.broker.Broker.replication`",
])  # fmt: skip
def test_what_does_not_exist_is_noticed(line: str) -> None:
    assert list(unresolved(line))


@pytest.mark.parametrize("line", [
    "`cursor_flusher.Share`", "`CursorFlusher.flush`", "`replication.link.chain.judge`", "`broker.links`", "`log.last`",
    "`asyncio.Protocol`", "`docs.design.links.md`", "`FLOW`",
])  # fmt: skip
def test_what_exists_or_is_no_name_passes(line: str) -> None:
    assert not list(unresolved(line))


def described(docstring: str) -> list[str]:
    """The parameters that a docstring describes."""
    part = re.search(r"^Args:\n((?:[ ]{4}.*\n?|\n)*)", docstring, re.MULTILINE)
    if part is None:
        return []
    heads = re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*):", part[1], re.MULTILINE)
    return [name.lstrip("*") for head in heads for name in head.split(", ")]


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Names of what a function takes."""
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {one.arg for one in every if one is not None}


def fields(node: ast.ClassDef) -> set[str]:
    """What the construction of a class takes: the parameters of `__init__`, or its fields."""
    made = {
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name in {"__init__", "__new__"}:
            made |= parameters(part)
    return made


def test_described_parameters_are_taken() -> None:
    wrong = []
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                taken = parameters(node)
            elif isinstance(node, ast.ClassDef):
                taken = fields(node)
                if not taken:
                    continue  # its base takes them
            else:
                continue
            wrong += [
                f"{name}:{node.lineno}: {node.name} takes no {one}"
                for one in described(ast.get_docstring(node) or "")
                if one not in taken
            ]
    assert not wrong, "\n".join(wrong)


def test_there_is_something_to_resolve() -> None:
    quoted = [found for _, line in texts() for found in QUOTED.findall(line)]
    assert sum(bool(module) for module, _, _ in quoted) > 50
    assert sum(bool(member) for _, _, member in quoted) > 50
    assert (
        sum(
            len(described(ast.get_docstring(node) or ""))
            for tree in modules().values()
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        )
        > 500
    )

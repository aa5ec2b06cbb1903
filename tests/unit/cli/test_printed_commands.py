"""Every command of `magnetar` that a message of the product names is one, with options that it has.

`tests/clients/test_ways_out.py` runs those that a broker prints.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from examples.demo import command as demo

from magnetar.cli.commands import all as commands
from magnetar.core.hints import command

SOURCES: Final = Path(__file__).parents[3] / "src" / "magnetar"
NAMED: Final = re.compile(r"magnetar ((?:[a-z][a-z-]+)(?: [a-z][a-z-]+)?)((?: (?:--[a-z-]+|[^\s`;,()]+))*)")
PROSE: Final = frozenset(
    {
        "needs",
        "does",
        "has",
        "is",
        "was",
        "of",
        "for",
        "and",
        "runs",
        "ready",
        "took",
        "ended",
        "says",
        "link",
        "broker",
        "with",
    }
)


def leaves() -> dict[str, set[str]]:
    """Each command -> its options."""
    from typer.main import get_command

    found: dict[str, set[str]] = {}

    def walk(name: str, each: object) -> None:
        inner = getattr(each, "commands", None)
        if inner is None:
            found[name] = {opt for param in each.params for opt in param.opts}  # type: ignore[attr-defined]
            return
        for word, one in inner.items():
            walk(f"{name} {word}".strip(), one)

    walk("", get_command(commands.app))
    walk("demo", get_command(demo.app))  # its door takes every word
    return found


LEAVES: Final = leaves()
NOUNS: Final = frozenset(leaf.split()[0] for leaf in LEAVES)


def texts() -> Iterator[tuple[str, str]]:
    """What the sources say to people: every string that is no docstring, with holes as `{}`; and where."""
    for path in sorted(SOURCES.rglob("*.py")):
        source = path.read_text()
        if "magnetar " not in source:
            continue
        tree = ast.parse(source)
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            where = f"{path.relative_to(SOURCES)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
                yield where, "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inside:
                yield where, node.value


def test_there_are_no_commands_that_do_not_exist() -> None:
    wrong = []
    for where, text in texts():
        for match in NAMED.finditer(text):
            words = match[1].split()
            if words[0] in PROSE:
                continue
            name = next((name for name in (match[1], words[0]) if name in LEAVES), None)
            if name is None and not (len(words) == 1 and words[0] in NOUNS):
                wrong.append(f"{where}: there is no command {match[1]!r}: {text[:120]}")
            elif name is not None:
                unknown = set(re.findall(r"--[a-z-]+", match[2])) - LEAVES[name] - {"--help"}
                if unknown:
                    wrong.append(f"{where}: {name} has no {unknown}")
            if " ..." in match[0]:
                wrong.append(f"{where}: {text[:120]!r} leaves out what has to be said")
    assert not wrong, "\n".join(wrong)


def test_what_is_put_together_is_a_command() -> None:
    seen, wrong = set(), []
    for path in sorted(SOURCES.rglob("*.py")):
        source = path.read_text()
        if "command(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            called = (
                isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "command"
            )
            if not called or not isinstance(node, ast.Call):
                continue
            words = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if not words:
                continue
            name = next((name for name in (" ".join(words[:2]), words[0]) if name in LEAVES), None)
            options = {word for word in words if word.startswith("--")}
            if name is None or not options <= LEAVES[name]:
                wrong.append(f"{path.relative_to(SOURCES)}:{node.lineno}: {words}")
            seen.add(name)
    assert not wrong, "\n".join(wrong)
    assert len(seen) >= 12


def test_words_are_quoted_for_a_shell() -> None:
    assert (
        command("topics", "create", "a b", admin_url="http://h:1")
        == "magnetar topics create 'a b' --admin-url http://h:1"
    )


@pytest.mark.parametrize(
    "name", ["topics create", "topics adopt-partitions", "namespaces set-clusters", "subscriptions unfence"]
)
def test_the_commands_are_found(name: str) -> None:
    assert name in LEAVES

"""The structure of the product and of its simulator, measured from its sources: every ceiling here only falls.

circles     modules that import each other, types counted: what has to be read together
rooms       entries of a folder: more than twenty are no listing that a reader takes in
halves      a base class with exactly one subclass is one class cut into two files
ranks       rooms inside `broker/`: a module imports from its own room, its own rank and from those to the left
wiring      side channels that no type shows
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.sources import PACKAGE, PACKAGES, RANKS, ROOT, SIMULATOR, modules

CIRCLE_MAX = 4
"""Modules of the largest circle: the registry, topics and machines of replicated subscriptions."""

HALVES_MAX = 4
"""Bases with exactly one subclass. None splits a class, each is used by itself as well: an Exclusive subscription, a log thread
(the simulator's has no thread), a frame (a refused one carries a reason), a world (a plain one makes two modes comparable)."""

DRAINS_MAX = 0
"""Loops over effects outside production but for the one interpreter: none."""

ENTRIES_MAX = 20
"""Of a folder."""

CROWDED = {"admin/routes": 27, "admin/http": 20, "cli/commands": 23, "pipeline": 22}
"""Folders with more, and how many: one module for each noun of an interface."""

TO_THE_RIGHT_MAX = 0
"""Imports inside `broker/` that go to the right: none."""


@cache
def imports() -> dict[str, frozenset[str]]:
    """Module -> the modules of ours that it imports, at any depth and for types alone too."""
    known = modules()
    edges: dict[str, set[str]] = {name: set() for name in known}
    for name, tree in known.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                edges[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    edges[name].add(full if full in known else node.module)
    return {name: frozenset(edges[name] & known.keys()) - {name} for name in known}


def circles() -> list[list[str]]:
    """Strongly connected components of more than one module, the largest first (Tarjan, without recursion)."""
    graph, index, low = imports(), {}, {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            name, following = work[-1]
            for target in following:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in on_stack:
                    low[name] = min(low[name], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    members = stack[stack.index(name) :]
                    del stack[stack.index(name) :]
                    on_stack.difference_update(members)
                    if len(members) > 1:
                        found.append(sorted(members))
    return sorted(found, key=len, reverse=True)


def bases() -> dict[str, list[str]]:
    """Class -> the classes that it derives from, each as `module.Class`; what is not ours by its name alone."""
    imported = {
        module: {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for module, tree in modules().items()
    }
    own = {
        module: {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for module, tree in modules().items()
    }

    def defined(module: str, name: str) -> str:
        """Where a name of a module comes from, through packages that pass it on."""
        if name in own.get(module, {}):
            return f"{module}.{name}"
        source = imported.get(module, {}).get(name)
        return defined(*source.rsplit(".", 1)) if source is not None else name

    return {
        f"{module}.{name}": [defined(module, base.id) for base in node.bases if isinstance(base, ast.Name)]
        for module, classes in own.items()
        for name, node in classes.items()
    }


def halves() -> list[str]:
    """Bases of ours with exactly one subclass; protocols, structs and errors are not meant to be halves."""
    found = bases()
    count = Counter(base for derived in found.values() for base in derived)

    def is_error(name: str) -> bool:
        return name.endswith(("Error", "Exception")) or any(map(is_error, found.get(name, ())))

    return sorted(
        name
        for name, derived in found.items()
        if count[name] == 1 and not {"Protocol", "Struct"} & set(derived) and not is_error(name)
    )


def rank(module: str) -> int | None:
    """Of a module of `broker/`; None: elsewhere."""
    inside = module.removeprefix("magnetar.broker.")
    if inside == module:
        return None
    places = [
        (len(room), number)
        for number, rooms in enumerate(RANKS)
        for room in rooms
        if inside == room or inside.startswith(f"{room}.")
    ]
    assert places, f"{module} is in no room of broker/: put it into one, or its room into RANKS"
    return max(places)[1]


def to_the_right() -> list[str]:
    """Imports of modules inside `broker/` that go to the right."""
    found = []
    for name, targets in imports().items():
        here = rank(name)
        for target in targets:
            there = rank(target)
            if here is not None and there is not None and there > here:
                found.append(f"{name} imports {target}")
    return sorted(found)


def test_circles_only_shrink() -> None:
    largest = circles()[:1]
    assert all(len(members) <= CIRCLE_MAX for members in largest), largest


def test_halves_only_become_fewer() -> None:
    assert len(halves()) <= HALVES_MAX, halves()


def test_rooms_inside_the_broker_import_to_the_left() -> None:
    assert len(to_the_right()) <= TO_THE_RIGHT_MAX, "\n".join(to_the_right())


def folders() -> Iterator[Path]:
    for package in PACKAGES:
        for path in [package, *sorted(package.rglob("*"))]:
            if path.is_dir() and path.name != "__pycache__":
                yield path


def called(folder: Path) -> str:
    """Its name in `CROWDED` and in failures."""
    return str(folder.relative_to(PACKAGE if folder.is_relative_to(PACKAGE) else SIMULATOR.parent))


@pytest.mark.parametrize("folder", list(folders()), ids=called)
def test_a_folder_can_be_listed(folder: Path) -> None:
    entries = [path for path in folder.iterdir() if path.name not in {"__pycache__", "__init__.py"}]
    assert len(entries) <= CROWDED.get(called(folder), ENTRIES_MAX), sorted(p.name for p in entries)


@pytest.mark.parametrize("folder", list(folders()), ids=called)
def test_a_folder_says_what_it_is_for(folder: Path) -> None:
    if any(path.suffix == ".py" for path in folder.iterdir()):
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert docstring, f"{folder}/__init__.py has no docstring"


WIRING = {
    r"\.extra\[": (0, "a field of `Append`: what is in a dict has no type"),
    r"effects\.insert\(": (0, "an order of its own: an effect's place in the outbox is its order"),
    r"^\s+\d+: (?:lambda|self\.)": (0, "a name of the enum in `pulsar_pb2`: a number says nothing"),
    r"\.__class__ = ": (1, "a factory: a class does not change"),
}
"""Pattern -> how often it may stand in the product and its simulator, and what stands there instead."""


@pytest.mark.parametrize("pattern", WIRING)
def test_side_channels_only_become_fewer(pattern: str) -> None:
    ceiling, instead = WIRING[pattern]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert len(found) <= ceiling, f"use {instead}: {found}"


TOPICS = {"topic", "_topic", "found_topic", "passing"}
"""Names that a topic, stored or not, has in other modules."""

TOPIC_FILES = ("broker.topics.topic", "broker.nonpersistent.topic")


def own_attributes(tree: ast.Module) -> dict[str, set[str]]:
    """Class -> the attributes that its own methods assign, and its fields."""
    return {
        node.name: {
            part.target.id
            for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        }
        | {
            part.attr
            for part in ast.walk(node)
            if isinstance(part, ast.Attribute)
            and isinstance(part.ctx, ast.Store)
            and isinstance(part.value, ast.Name)
            and part.value.id == "self"
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def assigned(node: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that a statement assigns: `x.a = `, `x.a += `, `x.a[i] = `, `x.a.b = `, each with the outermost names."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple) else [target]:
            found = part.value if isinstance(part, ast.Subscript) else part
            while isinstance(found, ast.Attribute):
                yield found
                found = found.value


def assignments_to_topics() -> list[str]:
    """Where modules other than a topic's own assign an attribute of it, or of its log, or an entry of its subscriptions."""
    of_topic, elsewhere = set[str](), Counter[str]()
    for tree in modules().values():
        for name, attributes in own_attributes(tree).items():
            if name == "Topic":
                of_topic |= attributes
            elif name != "NonPersistentTopic":
                elsewhere.update(attributes)
    alone = {name for name in of_topic if not elsewhere[name]}
    found = []
    for module, tree in modules().items():
        if module.endswith(TOPIC_FILES) or not module.startswith("magnetar.broker."):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
                for part in assigned(node):
                    owner = part.value
                    named = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
                    if named in TOPICS or (part.attr in alone and named != "self"):
                        found.append(f"{module}:{node.lineno}: {ast.unparse(part)}")
    return found


def test_only_a_topic_assigns_its_attributes() -> None:
    found = assignments_to_topics()
    assert not found, "call a method of Topic that says what happens: " + "\n".join(found)


INTERPRETER = SIMULATOR / "host" / "host.py"
DRAINS = re.compile(r"\bfor \w+ in [\w.]*\.drain\(\)")


def test_one_class_carries_out_effects_outside_production() -> None:
    """`Host`, for the simulator and for tests; what differs are the collaborators that it is given."""
    assert DRAINS.search(INTERPRETER.read_text()), "the pattern finds no loop over effects"
    found = [
        str(path.relative_to(ROOT))
        for folder in (SIMULATOR, ROOT / "tests", ROOT / "bench", ROOT / "examples")
        for path in sorted(folder.rglob("*.py"))
        if path != INTERPRETER and DRAINS.search(path.read_text())
    ]
    assert len(found) <= DRAINS_MAX, found


def imports_of_tests(source: str) -> list[str]:
    """The test modules that a module imports, and the names that it takes from them."""
    return [
        f"{node.module}: {', '.join(alias.name for alias in node.names)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        and f"{node.module}.".startswith("tests.")
        and any(part.startswith("test_") for name in node.names for part in f"{node.module}.{name.name}".split("."))
    ]


def test_no_test_imports_a_test() -> None:
    """What two test modules need is in `tests/support`, or a fixture of their folder's `conftest.py`."""
    assert imports_of_tests("from tests.unit.test_x import y") and imports_of_tests("from tests.unit import test_x")
    found = {
        str(path.relative_to(ROOT)): taken
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (taken := imports_of_tests(path.read_text()))
    }
    assert not found, found


def test_the_measures_see() -> None:
    """A graph of three with a circle of two, so that none of the ceilings above is met by a measure that sees nothing."""
    assert len(imports()) > 400
    assert imports()["magnetar.app"] > {"magnetar.broker.broker"}
    assert imports()["magnetar_sim.cluster"] > {"magnetar.broker.broker", "magnetar_sim.disk"}
    assert rank("magnetar.broker.statistics.latency") == 0
    assert rank("magnetar.broker.statistics.subscription_stats") == 5
    assert rank("magnetar.wire.frames") is None
    reached: dict[str, set[str]] = defaultdict(set)
    for members in circles():
        for name in members:
            reached[name] |= imports()[name] & set(members)
    assert all(reached.values())

"""Writes tables of docs/performance.md and docs/comparison.md from bench/results: Magnetar next to Apache Pulsar, and latencies.

A table stands between `<!-- figures: NAME -->` and `<!-- end of figures -->`; NAME is a key of `TABLES`. A file of figures that
is not there leaves a sentence that names its command. `--check` fails when a page differs.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = (ROOT / "docs" / "performance.md", ROOT / "docs" / "comparison.md")
RESULTS: Final = ROOT / "bench" / "results"
BLOCK: Final = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)

COMMANDS: Final = {
    "peers_pulsar": "python -m bench.peers --peer pulsar",
    "links_pulsar": "python -m bench.links --peer pulsar",
    "links_pulsar_far": "python -m bench.links --peer pulsar --one-way 0.04",
    "bookkeeper_pulsar": "python -m bench.bookkeeper_pulsar",
    "bookkeeper_takeover": "python -m bench.bookkeeper_takeover",
    "bookkeeper_pauses": "python -m bench.bookkeeper_pauses",
    "moves": "python -m bench.moves",
    "link_latency": "python -m bench.link_latency",
    "link_faults": "python -m bench.link_faults",
    "follow_positions": "python -m bench.follow positions",
    "follow_failover": "python -m bench.follow failover",
    "follow_metadata": "python -m bench.follow metadata",
}

ALIKE: Final = 0.1
"""Ratios that are not further than this from 1 are called alike: two runs of one system differ by as much."""


@dataclass(frozen=True)
class Row:
    """One measured thing at both systems.

    Attributes:
        name: what.
        ours, theirs: the medians.
        unit: of both; a unit with "/s" is better when it is higher, every other one when it is lower.
        ratio: the median of ours / theirs of each round.
    """

    name: str
    ours: float
    theirs: float
    unit: str
    ratio: float

    @property
    def gain(self) -> float:
        """How many times Magnetar is better; below 1 it is worse."""
        return self.ratio if "/s" in self.unit else 1 / self.ratio

    def cells(self) -> list[str]:
        """As a line of a table."""
        return [self.name, shown(self.ours, self.unit), shown(self.theirs, self.unit), digits(self.ratio)]


def shown(value: float, unit: str) -> str:
    """Three digits, or whole numbers."""
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def digits(ratio: float) -> str:
    """Two after the point."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose columns after the first are numbers."""
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def load(name: str) -> dict[str, Any] | None:
    """A file of figures; None where it is not there."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def peers(content: dict[str, Any]) -> Iterator[Row]:
    """One broker each: what was measured, and the processor time for each message."""
    values = {figure["name"]: figure for figure in content["figures"]}
    for name, figure in values.items():
        rounds = figure["detail"].get("rounds", {})
        for key, of, unit, what in (
            ("value", f"{name}: beside pulsar", figure["unit"], name),
            ("cpu_us", f"{name}: beside pulsar in processor time", "us/message", f"{name}: processor"),
        ):
            both = [[one[key] for one in rounds.get(kind, []) if key in one] for kind in ("magnetar", "pulsar")]
            if all(both) and of in values:
                yield Row(what, statistics.median(both[0]), statistics.median(both[1]), unit, values[of]["value"])
    for what in ("start to first publish", "memory after all"):
        ours, theirs = (values.get(f"{what}, {kind}") for kind in ("magnetar", "pulsar"))
        if ours and theirs:
            yield Row(what, ours["value"], theirs["value"], ours["unit"], ours["value"] / theirs["value"])


def links(content: dict[str, Any]) -> Iterator[Row]:
    """Two clusters each."""
    values = {figure["name"]: figure for figure in content["figures"]}
    for name, figure in values.items():
        if name.endswith(", magnetar"):
            stem = name.removesuffix(", magnetar")
            ratio = values[f"{stem}, magnetar / pulsar"]["value"]
            yield Row(stem, figure["value"], values[f"{stem}, pulsar"]["value"], figure["unit"], ratio)


def moves(content: dict[str, Any]) -> str:
    """Repeated messages of each round."""
    found: dict[str, dict[str, str]] = {}
    for figure in content["figures"]:
        kind, _, what = figure["name"].partition(": ")
        rounds = figure["detail"]["rounds"]
        text = " / ".join(f"{one['repeated']:,}" for one in rounds)
        name = what.removeprefix("repeated after a move ")
        found.setdefault(name, {})[kind] = f"{text} of {rounds[0]['acknowledged']:,}"
    rows = [[what, kinds.get("magnetar", ""), kinds.get("pulsar", "-")] for what, kinds in found.items()]
    return table(["the consumer moves", "Magnetar", "Pulsar"], rows)


def latencies(figures: list[dict[str, Any]]) -> Iterator[list[str]]:
    """A line for each thing that has the figures p50 and p99: its name and these; then its processor time, if it has one."""
    values: dict[str, dict[str, str]] = {}
    for figure in figures:
        found = re.fullmatch(r"(.*?):? (p50|p99|processor)", figure["name"])
        if found:
            values.setdefault(found[1], {})[found[2]] = against(figure)
    return ([name, *cells.values()] for name, cells in values.items() if {"p50", "p99"} <= set(cells))


def against(figure: dict[str, Any]) -> str:
    """A figure, and its goal where it has one."""
    text = shown(figure["value"], figure["unit"])
    goal = re.fullmatch(r"< ([\d.]+)", figure["aim"])
    if goal is None:
        return text
    return (
        f"{text} (goal: {figure['aim']})"
        if figure["value"] < float(goal[1])
        else f"missed: {text} (goal: {figure['aim']})"
    )


def follow() -> str:
    """What follows links; a file of figures for each part."""
    parts = [name for name in COMMANDS if name.startswith("follow_")]
    contents = {name: content for name in parts if (content := load(name))}
    rows = [row for content in contents.values() for row in latencies(content["figures"])]
    text = f"\n{table(['', 'p50', 'p99'], rows)}\n" if rows else "\n"
    runs = [origin(content) for content in contents.values()]
    runs += [f"Not measured yet: `{COMMANDS[name]}`" for name in parts if name not in contents]
    return text + ". ".join(runs) + ".\n\n"


def link_latency(content: dict[str, Any]) -> str:
    """Latency and processor time of each case, then the figures of a whole pipeline."""
    cases = table(["", "p50", "p99", "processor"], list(latencies(content["figures"])))
    whole = [
        [one["name"], against(one)] for one in content["figures"] if "idle" in one["name"] or "memory" in one["name"]
    ]
    return f"{cases}\n{table(['', ''], whole)}"


FAULTS: Final = {
    "writer": "the process that writes is killed: the oldest message",
    "reader": "the process that reads is killed: the oldest message",
    "destination": "the destination is killed: from its return until it has all",
    "stopped": "the destination stands still for 3 s: from its return until it has all",
    "still": "the source stands still for 30 s: from its return until the destination has all",
    "driver": "the driver is killed: from its start until the destination has all",
}
"""Faults of `bench.link_faults`, as its figures name them."""


def link_faults(content: dict[str, Any]) -> str:
    """Median and worst round of each fault; of a driver its start as well, which shows how busy the machine was."""
    rows = []
    for figure in content["figures"]:
        fault = figure["name"].rpartition(": ")[2]
        worst = figure["detail"]["worst_s"]
        rows.append(
            [FAULTS[fault], shown(figure["value"], "s"), shown(max(worst), "s"), str(len(worst)), figure["aim"]]
        )
        if starts := figure["detail"].get("start_s"):
            median = shown(statistics.median(starts), "s")
            rows.append(["of it until the driver replicates", median, shown(max(starts), "s"), str(len(starts)), ""])
    return table(["", "median", "worst", "rounds", "goal"], rows)


ROWS: Final[dict[str, Callable[[dict[str, Any]], Iterator[Row]]]] = {
    "peers_pulsar": peers,
    "links_pulsar": links,
    "links_pulsar_far": links,
    "bookkeeper_pulsar": peers,
}


def measured(name: str, made: Callable[[dict[str, Any]], str]) -> str:
    """A table of one file, with what a reader has to know of its run."""
    content = load(name)
    if content is None:
        return f"\nNot measured yet: `{COMMANDS[name]}`.\n\n"
    return f"\n{made(content)}\n{origin(content)}.\n\n"


def origin(content: dict[str, Any]) -> str:
    """The run that a file of figures is from."""
    words = [f"`{content['command']}`", content["when"], f"commit {content['commit']}"]
    return ", ".join([*words, f"{content['machine']['cpus']} processors"])


def rows_of(name: str) -> str:
    """The table of a file of rows."""
    head = ["", "Magnetar", "Pulsar", "ratio"]
    return measured(name, lambda content: table(head, [row.cells() for row in ROWS[name](content)]))


def goals(content: dict[str, Any]) -> str:
    """The figures that have a goal."""
    rows = [
        [one["name"].replace(": beside", ", compared with"), shown(one["value"], one["unit"]), one["aim"]]
        for one in content["figures"]
        if one["aim"]
    ]
    return table(["", "measured", "goal"], rows)


def verdict(wanted: Callable[[float], bool]) -> str:
    """Rows of all files whose gain is wanted, the most distant from 1 first."""
    places = {"peers_pulsar": "broker", "links_pulsar": "link", "links_pulsar_far": "link over 80 ms"}
    places["bookkeeper_pulsar"] = "broker on BookKeeper"
    rows = []
    for name, made in ROWS.items():
        content = load(name)
        rows += [(row, places[name]) for row in made(content)] if content else []
    chosen = sorted((each for each in rows if wanted(each[0].gain)), key=lambda each: -abs(1 - each[0].ratio))
    cells = [[f"{place}: {row.name}", *row.cells()[1:]] for row, place in chosen]
    return f"\n{table(['', 'Magnetar', 'Pulsar', 'ratio'], cells) if cells else 'None.'}\n"


TABLES: Final[dict[str, Callable[[], str]]] = {
    **{name: lambda name=name: rows_of(name) for name in ROWS},  # type: ignore[misc]
    "bookkeeper_goals": lambda: measured("bookkeeper_pulsar", goals),
    "bookkeeper_takeover": lambda: measured("bookkeeper_takeover", goals),
    "bookkeeper_pauses": lambda: measured("bookkeeper_pauses", goals),
    "moves": lambda: measured("moves", moves),
    "follow": follow,
    "link_latency": lambda: measured("link_latency", link_latency),
    "link_faults": lambda: measured("link_faults", link_faults),
    "ahead": lambda: verdict(lambda gain: gain > 1 + ALIKE),
    "alike": lambda: verdict(lambda gain: 1 / (1 + ALIKE) <= gain <= 1 + ALIKE),
    "behind": lambda: verdict(lambda gain: gain < 1 / (1 + ALIKE)),
}


def page(text: str) -> str:
    """A page with its blocks filled."""
    return BLOCK.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main() -> int:
    """Write the pages, or check them."""
    for path in PAGES:
        old = path.read_text(encoding="utf-8")
        new = page(old)
        if "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
        elif new != old:
            sys.stderr.write(f"{path.name} is not what bench/results gives: run `make docs`\n")
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

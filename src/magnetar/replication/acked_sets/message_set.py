"""Sets of messages by their identity: per (origin, topic incarnation) a compressed bitmap of origin indexes.

A consumer that acknowledges in order costs a few bytes, however many messages it acknowledged. No operation makes an object per
message.
"""

from collections.abc import Iterator, Mapping
from typing import Self

from pyroaring import BitMap64

from magnetar.core.ids import OriginKey

Marks = Mapping[str, tuple[int, int]]
"""Per cluster a point in its sequence of messages, (incarnation, index); see `wire.acksets.Mark`."""


def runs_of(bitmap: BitMap64) -> Iterator[tuple[int, int]]:
    """The maximal runs of consecutive numbers, as (first, end), ascending."""
    behind = bitmap.shift(1)
    return zip(bitmap - behind, behind - bitmap, strict=True)


def count_runs(bitmap: BitMap64) -> int:
    """How many maximal runs of consecutive numbers there are."""
    return len(bitmap) - bitmap.intersection_cardinality(bitmap.shift(1))


def between(first: int, end: int) -> BitMap64:
    """The numbers first..end-1."""
    bitmap = BitMap64()
    bitmap.add_range(first, end)
    return bitmap


class MessageSet:
    """A mutable set of messages.

    Attributes:
        origins: by origin; never an empty bitmap. To be read only: bitmaps are not shared.
    """

    __slots__ = ("origins",)

    def __init__(self, origins: Mapping[OriginKey, BitMap64] | None = None) -> None:
        self.origins: dict[OriginKey, BitMap64] = {
            key: bitmap.copy() for key, bitmap in (origins or {}).items() if bitmap
        }

    def __bool__(self) -> bool:
        return bool(self.origins)

    def __len__(self) -> int:
        return sum(map(len, self.origins.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageSet) and self.origins == other.origins

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        runs = (f"{key.cluster}.{key.incarnation}:{first}-{end - 1}" for key, first, end in self.runs())
        return f"MessageSet({' '.join(runs)})"

    def __contains__(self, message: tuple[OriginKey, int]) -> bool:
        bitmap = self.origins.get(message[0])
        return bitmap is not None and message[1] in bitmap

    def copy(self) -> "MessageSet":
        """One that shares nothing with this."""
        return MessageSet(self.origins)

    def add_range(self, origin: OriginKey, first: int, end: int) -> None:
        """Add messages first..end-1 of an origin."""
        if end <= first:
            return
        bitmap = self.origins.get(origin)
        if bitmap is None:
            bitmap = self.origins[origin] = BitMap64()
        if end == first + 1:
            bitmap.add(first)
        else:
            bitmap.add_range(first, end)

    def remove_from(self, origin: OriginKey, first: int) -> None:
        """Remove `first` and all above it of an origin."""
        bitmap = self.origins.get(origin)
        if bitmap is not None:
            bitmap &= between(0, first)
            if not bitmap:
                del self.origins[origin]

    def count_in(self, origin: OriginKey, first: int, end: int) -> int:
        """How many of first..end-1 of an origin are in the set."""
        bitmap = self.origins.get(origin)
        return 0 if bitmap is None or end <= first else bitmap.range_cardinality(first, end)

    # ------------------------------------------------------------------------------------------------------- algebra

    def __ior__(self, other: "MessageSet") -> Self:
        for key, bitmap in other.origins.items():
            mine = self.origins.get(key)
            if mine is None:
                self.origins[key] = bitmap.copy()
            else:
                mine |= bitmap
        return self

    def difference_update(self, other: "MessageSet") -> None:
        """Remove the messages of another set."""
        for key in self.origins.keys() & other.origins.keys():
            mine = self.origins[key]
            mine -= other.origins[key]
            if not mine:
                del self.origins[key]

    def __isub__(self, other: "MessageSet") -> Self:
        self.difference_update(other)
        return self

    def __or__(self, other: "MessageSet") -> "MessageSet":
        result = self.copy()
        result |= other
        return result

    def __and__(self, other: "MessageSet") -> "MessageSet":
        result = MessageSet()
        for key in self.origins.keys() & other.origins.keys():
            both = self.origins[key] & other.origins[key]
            if both:
                result.origins[key] = both
        return result

    def __sub__(self, other: "MessageSet") -> "MessageSet":
        result = MessageSet()
        for key, mine in self.origins.items():
            theirs = other.origins.get(key)
            left = mine.copy() if theirs is None else mine - theirs
            if left:
                result.origins[key] = left
        return result

    def __le__(self, other: "MessageSet") -> bool:
        return not self - other

    def below(self, marks: Marks) -> "MessageSet":
        """The messages below the marks; of clusters without a mark none."""
        result = MessageSet()
        for key, bitmap in self.origins.items():
            mark = marks.get(key.cluster)
            if mark is None or key.incarnation > mark[0]:
                continue
            low = bitmap.copy() if key.incarnation < mark[0] else _below(bitmap, mark[1])
            if low:
                result.origins[key] = low
        return result

    # ----------------------------------------------------------------------------------------------------- questions

    def runs(self) -> Iterator[tuple[OriginKey, int, int]]:
        """The maximal runs, as (origin, first, end), ascending."""
        for key in sorted(self.origins):
            for first, end in runs_of(self.origins[key]):
                yield key, first, end

    def count_runs(self) -> int:
        """How many maximal runs there are."""
        return sum(map(count_runs, self.origins.values()))

    def bytes(self) -> int:
        """Size as it is written and stored."""
        return sum(len(bitmap.serialize()) for bitmap in self.origins.values())

    def optimize(self) -> None:
        """Make the bitmaps small before they are written."""
        for bitmap in self.origins.values():
            bitmap.run_optimize()

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert all(self.origins.values()), "an empty bitmap was left behind"


def _below(bitmap: BitMap64, index: int) -> BitMap64:
    if not index or bitmap.min() >= index:
        return BitMap64()
    return bitmap & between(0, index)

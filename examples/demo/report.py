"""The demo's verdict as tables and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from examples.demo.outbox import BOOKINGS
from examples.demo.reasons import KILLED
from examples.demo.script import CONSUMER_AT, ELSEWHERE, Outcome
from examples.demo.tally import Tally
from magnetar.cli.shared.common import size

LINK_COLUMNS = ("link", "flights", "volume", "flights_per_s", "lag_p50", "lag_p99", "longest", "lost", "twice")
SCHEMA_COLUMNS = ("observer", "versions", "decoded_by_version", "with_new_field", "not_decoded")
VERDICT_COLUMNS = ("of_the_whole", "figure")
VERIFY_COLUMNS = ("cluster", "messages", "missing", "duplicated", "reordered", "altered")


def percentile(values: Sequence[int], share: float) -> int | None:
    """The smallest value that so large a share of all does not exceed; None when there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def links(watchers: Mapping[str, Tally]) -> list[dict[str, Any]]:
    """One row a link, figures as numbers (ms, bytes), from what the readers saw, by cluster."""
    return [
        {
            "link": f"{origin}:{cluster}",
            "flights": link.arrived,
            "bytes": link.size,
            "flights_per_s": round(link.per_second),
            "lag_p50_ms": percentile(link.calm, 0.5),
            "lag_p99_ms": percentile(link.calm, 0.99),
            "lag_max_ms": link.lag_max_ms,
            "lost": link.missing,
            "twice": link.again,
        }
        for cluster, tally in watchers.items()
        for origin, link in tally.links.items()
        if origin != cluster
    ]


def ms(value: int | None) -> str:
    """A time for people; "" for none."""
    return "" if value is None else f"{value:,} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `links` for people."""
    return row | {
        "volume": size(row["bytes"]),
        "lag_p50": ms(row["lag_p50_ms"]),
        "lag_p99": ms(row["lag_p99_ms"]),
        "longest": ms(row["lag_max_ms"]),
    }


def schemas(outcome: Outcome) -> list[dict[str, Any]]:
    """One row an observer: the versions of its cluster's registry, and what it decoded with each."""
    return [
        {
            "observer": tally.name,
            "versions": outcome.versions.get(tally.name, []),
            "decoded": {str(version): count for version, count in sorted(tally.decoded.items())},
            "with_new_field": tally.evolved,
            "not_decoded": tally.undecoded,
        }
        for tally in (*outcome.watchers.values(), outcome.consumer)
    ]


def shown_schema(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `schemas` for people."""
    decoded = ", ".join(f"{version}: {count:,}" for version, count in row["decoded"].items())
    return row | {"decoded_by_version": decoded}


def summary(outcome: Outcome, verified: dict[str, Any]) -> dict[str, Any]:
    """Everything, as JSON."""
    faults = outcome.faults() + verify_faults(sum(outcome.published.values()), verified)
    return {
        "published": outcome.published,
        "links": links(outcome.watchers),
        "consumer": {
            "clusters": [CONSUMER_AT, ELSEWHERE, CONSUMER_AT],
            "flights": outcome.consumer.arrived,
            "delivered_twice": outcome.consumer.again,
            "delivered_twice_explained": outcome.consumer.explained,
            "delivered_twice_because": {reason_text(one): n for one, n in outcome.consumer.reasons.items()},
        },
        "subscription": {
            "staleness_p50_ms": percentile(outcome.staleness, 0.5),
            "staleness_p99_ms": percentile(outcome.staleness, 0.99),
            "moved": outcome.moved,
        },
        "schemas": schemas(outcome),
        "outbox": {
            "sent": outcome.booked.sent,
            "held": {cluster: len(bookings) for cluster, bookings in outcome.booked.held.items()},
        },
        "metadata": {
            "everywhere_ms": outcome.booked.everywhere_ms,
            "agree": outcome.booked.agree,
            "changed_while_one_was_down": outcome.booked.ttl_s,
        },
        "lost": lost(outcome),
        "verify": verified,
        "times_s": outcome.times,
        "faults": faults,
        "ok": not faults,
    }


def verify_faults(published: int, verified: dict[str, Any]) -> list[str]:
    """What `magnetar verify` found that must not be, where so many messages were published."""
    lines = []
    if verified["messages"] != published:
        lines.append(f"verify counts {verified['messages']:,} different messages, {published:,} were published")
    for row in verified["clusters"]:
        kinds = [kind for kind in ("missing", "duplicated", "reordered", "altered") if row[kind]]
        lines += [f"verify: {row['cluster']} has {row[kind]:,} {kind}" for kind in kinds]
        if row["messages"] != published:
            lines.append(f"verify: {row['cluster']} holds {row['messages']:,} messages, {published:,} were published")
    if not verified["clean"] and not lines:
        lines.append("verify says that the clusters differ")
    return lines


def verdict(outcome: Outcome) -> list[dict[str, Any]]:
    """What the demo is for, a row a figure: lost, delivered twice with the reason of each, how stale the subscription was."""
    tallies = [*outcome.watchers.values(), outcome.consumer]
    again = sum(tally.again for tally in tallies)
    rows: list[tuple[str, int | str]] = [
        ("messages published", sum(outcome.published.values())),
        ("messages lost", lost(outcome)),
        ("messages delivered twice", again),
        *((f"of these {reason_text(reason)}", count) for reason, count in outcome.consumer.reasons.items()),
    ]
    strange = again - outcome.consumer.explained
    if strange:
        rows.append(("of these without a reason", strange))
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        value = ms(percentile(outcome.staleness, share)) or "not measured"
        rows.append((f"acknowledged in one cluster, known in the others after, {name}", value))
    return [dict(zip(VERDICT_COLUMNS, row, strict=True)) for row in rows]


def lost(outcome: Outcome) -> int:
    """Messages that a reader or the consumer never got."""
    return sum(tally.missing for tally in (*outcome.watchers.values(), outcome.consumer))


def reason_text(reason: str) -> str:
    """Why flights came twice, in words."""
    if reason == KILLED:
        return f"acknowledged in {CONSUMER_AT}, and {ELSEWHERE} did not know when {CONSUMER_AT} was killed"
    return f"sent to the consumer in {ELSEWHERE} and not acknowledged in time for the planned move"


def sentences(outcome: Outcome) -> list[str]:
    """What the tables do not say."""
    published = ", ".join(f"{name} {count:,}" for name, count in outcome.published.items())
    lines = [
        f"published: {published}",
        f"the consumer began in {CONSUMER_AT}, continued in {ELSEWHERE} and came back with {outcome.consumer.arrived:,} flights",
    ]
    if outcome.moved:
        lines.append(
            f"the planned way back: {outcome.moved['redelivered']:,} delivered twice, {outcome.moved['skipped']:,} skipped, "
            f"{outcome.moved['pause_ms']:,} ms without messages"
        )
    if outcome.booked.held:
        held = ", ".join(f"{cluster} {len(bookings)}" for cluster, bookings in outcome.booked.held.items())
        lines.append(
            f"the outbox: {BOOKINGS} bookings with keys, all sent again in another cluster: {outcome.booked.sent} messages; "
            f"every cluster holds each once: {held}"
        )
        lines.append(
            f"tenants, namespaces, policies: made in one cluster, everywhere after {outcome.booked.everywhere_ms:,} ms; "
            "the same in all, also where the broker was down when they changed"
        )
    lines.append(
        "flights per s, lag p50 and p99, and when others know: while nothing was broken; longest: of all; lag is from "
        "publishing to arrival"
    )
    return lines

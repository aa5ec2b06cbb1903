"""The status page at `/`: plain HTML made here, without external resources."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from aiohttp import web

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.metrics.page import collect_topics
from magnetar.broker.links.states import LinkState

PAGE_ROWS_MAX: Final = 200
"""A ceiling on the rows of one table: longer tables cannot be read and cost the broker time."""

REFRESH_S: Final = 5

page = Routes("Status page", own=True)

STYLE: Final = """
:root{color-scheme:light dark;--line:#c9ced6;--soft:#5a6472;--bad:#a4161a;--good:#1b6e3c;--head:#eef1f5}
@media(prefers-color-scheme:dark){:root{--line:#3a424d;--soft:#a3adba;--bad:#ff8a80;--good:#7bd88f;--head:#1d232b}}
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:1.5rem;max-width:76rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.3rem 0}
.soft{color:var(--soft)}.bad{color:var(--bad);font-weight:600}.good{color:var(--good);font-weight:600}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
th{background:var(--head);font-weight:600;white-space:nowrap}td{overflow-wrap:anywhere}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;overflow-wrap:normal}
"""

_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No script at all, and no other style than the one above: a name that slipped through could still do nothing."""


@page.add("GET", "/", "The status page.", reply="HTML")
async def status_page(call: Call) -> web.Response:
    """Links, topics, subscriptions."""
    topics = await collect_topics(call, PAGE_ROWS_MAX)
    text = render(call, topics, call.control.links.states(), call.control.statistics.broker())
    return web.Response(text=text, content_type="text/html", headers={"Content-Security-Policy": POLICY})


def render(call: Call, topics: dict[str, dict[str, Any]], links: Sequence[LinkState], broker: dict[str, Any]) -> str:
    """The whole page."""
    info = call.info
    up_s = max(0, call.services.now_ms() - info.started_ms) // 1000
    ready = broker.get("ready", False)
    health = _mark("serving", good=True) if ready else _mark(str(broker.get("state") or "not ready"), good=False)
    name = escape(info.cluster)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{REFRESH_S}">
<title>{name} - Magnetar</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{name}</h1>
<p>{health} <span class="soft">for {escape(duration(up_s))}, Magnetar {escape(info.version)}</span></p>
<p class="soft">Clients: {escape(info.service_url)}. {broker.get("connections", 0)} connections,
{broker.get("producers", 0)} producers, {broker.get("consumers", 0)} consumers,
{size(broker.get("storageSize", 0))} stored.</p>
</header>
<main>
{_links(links)}
{_blocked(links)}
{_topics(topics, int(broker.get("topics", len(topics))))}
{_subscriptions(topics)}
</main>
<footer><p class="soft"><a href="/openapi.json">REST interface</a>, <a href="/metrics">metrics</a>.
This page renews itself every {REFRESH_S} s.</p></footer>
</body>
</html>
"""


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], none: str, more: int = 0) -> str:
    """A table; heads that begin with `#` are of numbers. Cells are HTML already."""
    body = list(rows)
    if not body:
        return f'<section><h2>{title}</h2><p class="soft">{none}</p></section>'
    kinds = [' class="n"' if head.startswith("#") else "" for head in heads]
    head = "".join(f'<th scope="col"{kind}>{head.lstrip("#")}</th>' for kind, head in zip(kinds, heads, strict=True))
    lines = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in body[:PAGE_ROWS_MAX]
    )
    more += max(0, len(body) - PAGE_ROWS_MAX)
    rest = f'<p class="soft">{more:,} more; the REST interface lists them all.</p>' if more else ""
    return (
        f'<section><h2>{title}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody></table></div>{rest}</section>"
    )


def _links(links: Sequence[LinkState]) -> str:
    rows = [
        (
            f"{escape(link['source'])} &rarr; {escape(link['target'])}",
            _mark(link["state"], good=link["state"] in {"up", "idle"}),
            f"{link['lag_messages']:,}",
            size(link["lag_bytes"]),
            duration(link["lag_ms"] // 1000) if link["lag_messages"] else "none",
            f"{link['messages_sent']:,}",
            size(link["bytes_sent"]),
            f"{link['gap_messages'] + link['skipped_messages']:,}",
            escape(link["detail"]),
        )
        for link in links
    ]
    heads = ("link", "state", "#lag", "#bytes behind", "#oldest", "#sent", "#bytes sent", "#given up", "remark")
    return _table("Links", heads, rows, "This cluster has no links.")


def _blocked(links: Sequence[LinkState]) -> str:
    rows = [
        (
            escape(link["target"]),
            escape(topic["topic"]),
            _mark(topic["blocked"] or "paused", good=not topic["blocked"]),
            f"{topic['lag_messages']:,}",
            escape(topic.get("blocked_detail", "")),
        )
        for link in links
        for topic in link["topics"]
        if topic["blocked"] or topic["paused"]
    ]
    if not rows:
        return ""
    return _table("Stopped topics", ("to", "topic", "why", "#lag", "what to do"), rows, "")


def _topics(topics: dict[str, dict[str, Any]], total: int) -> str:
    rows = [
        (
            escape(name),
            f"{stats.get('msgInCounter', 0):,}",
            f"{stats.get('msgOutCounter', 0):,}",
            size(stats.get("storageSize", 0)),
            str(len(stats.get("publishers", ()))),
            str(len(stats.get("subscriptions", ()))),
        )
        for name, stats in topics.items()
    ]
    heads = ("topic", "#published", "#delivered", "#stored", "#producers", "#subscriptions")
    more = max(0, total - len(topics))
    return _table("Topics", heads, rows, "No topics yet: publish to one, and it is there.", more)


def _subscriptions(topics: dict[str, dict[str, Any]]) -> str:
    rows = [
        (
            escape(topic),
            escape(name),
            escape(str(stats.get("type", "") or "")),
            f"{stats.get('msgBacklog', 0):,}",
            f"{stats.get('unackedMessages', 0):,}",
            str(len(stats.get("consumers", ()))),
        )
        for topic, of_topic in topics.items()
        for name, stats in of_topic.get("subscriptions", {}).items()
    ]
    heads = ("topic", "subscription", "type", "#backlog", "#unacknowledged", "#consumers")
    return _table("Subscriptions", heads, rows, "No subscriptions.")


def _mark(text: str, *, good: bool) -> str:
    return f'<span class="{"good" if good else "bad"}">{escape(text)}</span>'


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def duration(seconds: int) -> str:
    """A time span for people."""
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h" if seconds < 172_800 else f"{seconds // 86_400} days"

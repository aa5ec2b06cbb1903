"""`magnetar drain`: is it safe to switch a cluster off now; waits until it is.

The broker says what keeps it (`broker.draining`); it is asked again whenever one of its links has news (a long poll of
each link, no clock), and at least every `LOOK_S` for what no link tells: producers that leave. Before "safe" is said, every
destination is asked what it has *on disk*: a link's own cursor would not know of a disk that was lost since.
"""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from magnetar.admin.client import AdminClient
from magnetar.cli.common import ConfigOption, JsonOption, cell, console, print_json, print_line, read_config, table
from magnetar.core.config import Config
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.runtime.secretfile import read_link_token

if TYPE_CHECKING:
    from magnetar.runtime.client import LinkClient

EXAMPLE = "magnetar drain us-west --timeout 300"

LOOK_S: Final = 1.0
"""The longest time between two looks: producers come and go without any link hearing of it."""

PAUSE_S: Final = 0.1
"""The shortest: a busy link has news all the time, and a look walks over all topics."""

POLL_MS: Final = 20_000
"""How long a link's poll is held open by the broker; it answers at once when something moves."""

TIMEOUT_S: Final = 10.0

TOPICS_PER_HANDSHAKE: Final = 1_000
"""As the pipeline's: a command of some 100 kB."""

COLUMNS = ("link", "state", "topics_waiting", "messages", "entries")

NAMED_MAX: Final = 3
"""Reasons in the one line of a failure; the table and `--json` have more."""


def drain(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster that is to be switched off.")],
    config: ConfigOption = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="Give up after so long (exit code 1); 0: only look. Default: wait."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until a cluster can be switched off: everything published there is on the other clusters' disks."""
    chosen = read_config(config)
    client = AdminClient(chosen.cluster(cluster).admin_url, timeout_s=TIMEOUT_S)
    token = read_link_token(chosen.replication.token_file) if chosen.links else ""
    news = threading.Event()
    if timeout != 0:
        for link in chosen.links:
            if link.source == cluster:
                _listen(chosen, token, cluster, link.target, news)
    show = _silent if as_json else _shower()
    until = None if timeout is None else time.monotonic() + timeout
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        news.set()

    kept = signal.signal(signal.SIGTERM, stop)
    try:
        while True:
            news.clear()
            state = look(client, chosen, token, cluster)
            show(state)
            left = None if until is None else until - time.monotonic()
            if state["safe"] or stopped.is_set() or (left is not None and left <= 0):
                break
            news.wait(LOOK_S if left is None else min(LOOK_S, left))
            stopped.wait(PAUSE_S)
    finally:
        signal.signal(signal.SIGTERM, kept)
        show(None)
    if as_json:
        print_json(state)
    if not state["safe"]:
        raise MagnetarError(f"it is not safe to switch {cluster} off: {why(state)}")
    if not as_json:
        for line in notes(state):
            print_line(line)
        print_line(f"{cluster} can be switched off now: its links have delivered everything")


# --------------------------------------------------------------------------------------------------------------- looking


def look(client: AdminClient, config: Config, token: str, cluster: str) -> dict[str, Any]:
    """What keeps the cluster, with `unconfirmed`: what destinations do not have on disk although the link says so.

    Raises:
        MagnetarError: the cluster itself does not answer, or another one does.
    """
    state: dict[str, Any] = client.get("/geo/v1/drain")
    if state["cluster"] != cluster:
        raise MagnetarError(f"{client.base_url} is {state['cluster']}, not {cluster}: check the configuration")
    state["unconfirmed"] = []
    if state["safe"]:
        state["unconfirmed"] = unconfirmed(config, token, state["cluster"], [link["target"] for link in state["links"]])
        # Asking took time: whoever came meanwhile counts.
        state |= {"safe": not state["unconfirmed"] and client.get("/geo/v1/drain")["safe"]}
    return state


def unconfirmed(config: Config, token: str, cluster: str, targets: list[str]) -> list[str]:
    """A line for each destination, or topic of it, that does not have on disk what its link takes for delivered."""
    from magnetar.runtime.client import LinkClient

    lines: list[str] = []
    for target in targets:
        try:
            with (
                LinkClient.connect(config.link_address(cluster), token) as here,
                LinkClient.connect(config.link_address(target), token) as there,
            ):
                lines += _compare(here, there, cluster, target)
        except MagnetarError as error:
            lines.append(f"{cluster}:{target}: what {target} has cannot be asked: {error}")
    return lines


def _compare(here: "LinkClient", there: "LinkClient", cluster: str, target: str) -> list[str]:
    from magnetar.wire import pulsar_pb2 as pb

    told = here.topics(target)
    lines = []
    for at in range(0, len(told.topics), TOPICS_PER_HANDSHAKE):
        states = {state.topic: state for state in told.topics[at : at + TOPICS_PER_HANDSHAKE] if not state.removed}
        queries = [
            pb.GeoWatermarkQuery(
                topic=name, incarnation=state.incarnation, partitions=state.partitions, last=state.last,
                start=state.cursor.c,
            )
            for name, state in states.items()
        ]  # fmt: skip
        answer = there.watermarks(cluster, told.uuid, queries)
        if answer.blocked:
            return [f"{cluster}:{target} blocked: {answer.blocked}: {answer.reason}"]
        for watermark in answer.topics:
            sent = states[watermark.topic].cursor.s
            has = Position(watermark.persisted.ledger, watermark.persisted.entry)
            if has < Position(sent.ledger, sent.entry):
                lines.append(f"{cluster}:{target} {watermark.topic}: {target} has lost data; it will be sent again")
    return lines


def _listen(config: Config, token: str, cluster: str, target: str, news: threading.Event) -> None:
    """Set `news` whenever the state of a link changes, from a thread that ends with the process."""

    def run() -> None:
        from magnetar.runtime.client import LinkClient

        while True:
            try:
                with LinkClient.connect(config.link_address(cluster), token) as client:
                    told = client.topics(target)
                    while True:
                        told = client.topics(target, told.counter, boot=told.boot, wait_ms=POLL_MS)
                        news.set()
            except MagnetarError:
                time.sleep(LOOK_S)  # the main thread looks at least as often, and says what is wrong

    threading.Thread(target=run, name=f"link to {target}", daemon=True).start()


# --------------------------------------------------------------------------------------------------------------- telling


def reasons(state: dict[str, Any]) -> list[str]:
    """A line for everything that keeps the cluster, what needs an operator first."""
    cluster = state["cluster"]
    stuck: list[str] = []
    moving: list[str] = []
    for link in state["links"]:
        for topic in link["topics"]:
            line = f"{cluster}:{link['target']} {topic['topic']}: {_count(topic)} not delivered, {topic['reason']}"
            (moving if topic["reason"] == "on its way" else stuck).append(line)
        more = link["topics_waiting"] - len(link["topics"])
        if more:
            moving.append(f"{cluster}:{link['target']}: {more:,} more topics are not delivered")
    lines = stuck + list(state.get("unconfirmed", ()))
    lines += [
        f"producer {one['producer']} ({one['address']}) is connected to {one['topic']}" for one in state["producers"]
    ]
    more = state["producers_connected"] - len(state["producers"])
    lines += [f"{more:,} more producers are connected"] if more > 0 else []
    lines += [
        f"subscription {one['subscription']} of {one['topic']}: {one['reason']}" for one in state["subscriptions"]
    ]
    lines += moving
    if state["writes"]:
        lines.append(f"{state['writes']:,} writes are on their way to the disk")
    return [cell(line) for line in lines]


def _count(topic: dict[str, Any]) -> str:
    messages, markers = topic["messages"], topic["entries"]
    return f"{messages:,} messages" if messages else f"{markers:,} markers of replicated subscriptions"


def why(state: dict[str, Any]) -> str:
    """All reasons in one line."""
    lines = reasons(state)
    more = len(lines) - NAMED_MAX
    return (
        "; ".join(lines[:NAMED_MAX]) + (f"; and {more} more reasons" if more > 0 else "") or "somebody just published"
    )


def notes(state: dict[str, Any]) -> list[str]:
    """What a switched-off cluster takes with it although its links are done."""
    lines = []
    if state["only_here_messages"]:
        lines.append(
            f"note: {state['only_here_messages']:,} messages of {state['only_here_topics']:,} topics are in "
            f"{state['cluster']} alone, for no link takes them"
        )
    for namespace, missing in state["unlinked"].items():
        lines.append(f"note: namespace {namespace} names {', '.join(missing)}, but no link leads there")
    return [cell(line) for line in lines]


def picture(state: dict[str, Any]) -> Any:
    """A table and the first reasons, for a terminal."""
    from rich.console import Group
    from rich.text import Text

    rows = [{"link": f"{state['cluster']}:{link['target']}"} | link for link in state["links"]]
    lines = reasons(state)
    return Group(table(rows, COLUMNS), *(Text(line) for line in lines[:20]))


def _silent(_state: dict[str, Any] | None) -> None:
    """JSON is printed once, at the end."""


@dataclass
class _Lines:
    """Progress where there is no terminal: a line when it has changed, at most one a second."""

    clock: Callable[[], float] = time.monotonic
    said: str = ""
    at: float = field(default=float("-inf"))

    def __call__(self, state: dict[str, Any] | None) -> None:
        if state is None or state["safe"]:
            return
        messages = sum(link["messages"] for link in state["links"])
        line = (
            f"waiting: {messages:,} messages not delivered, {state['producers_connected']:,} producers connected; "
            f"{why(state)}"
        )
        if line != self.said and self.clock() - self.at >= LOOK_S:
            self.said, self.at = line, self.clock()
            print_line(line)


def _shower() -> Callable[[dict[str, Any] | None], None]:
    """Shows each state; None ends it."""
    screen = console()
    if not screen.is_terminal:
        return _Lines()
    from rich.live import Live

    live = Live(console=screen, auto_refresh=False, transient=True)
    live.start()

    def show(state: dict[str, Any] | None) -> None:
        if state is None:
            live.stop()
        else:
            live.update(picture(state), refresh=True)

    return show

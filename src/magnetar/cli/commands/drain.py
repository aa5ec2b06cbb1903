"""`magnetar drain`: wait until a cluster can be switched off without losing anything.

The broker reports what prevents it (`broker.admin.draining`). It is asked again whenever one of its links has news (a
long poll of each link, no timer), and at least every `LOOK_S` for changes that no link reports: producers that leave.
Before the command reports "safe", it asks every destination which entries of every topic it has *on disk*, because a
link's own cursor does not show that a disk was lost since. A topic that the links' token may not ask for is not safe.
The token is read again each time, because a token that expires is replaced in its file.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from magnetar.admin.client import AdminClient
from magnetar.cli.shared.common import (
    ConfigOption,
    JsonOption,
    cell,
    console,
    print_json,
    print_line,
    read_config,
    table,
)
from magnetar.core.config import Config
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.secret_file import read_link_token

if TYPE_CHECKING:
    from magnetar.runtime.network.link_client import LinkClient

EXAMPLE = "magnetar drain us-west --timeout 300"

LOOK_S: Final = 1.0
"""The longest time between two looks: producers come and go without any link hearing of it."""

PAUSE_S: Final = 0.1
"""The shortest: a busy link has news all the time, and a look walks over all topics."""

POLL_MS: Final = 20_000
"""The time for which the broker holds a link's poll; it answers at once when something moves."""

TIMEOUT_S: Final = 10.0

PATIENCE_S: Final = 0.5
"""The least timeout of an answer, also near the end of `--timeout`, so that the last question can still be answered."""

TOPICS_PER_HANDSHAKE: Final = 1_000
"""The same as the pipeline's: a command of some 100 kB."""

COLUMNS = ("link", "state", "topics_waiting", "messages", "entries")

NAMED_MAX: Final = 3
"""Reasons in the one line of a failure; the table and `--json` have more."""


def drain(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster to be switched off.")],
    config: ConfigOption = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="Give up after this time (exit code 1); 0: check once. Default: no limit."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until a cluster can be switched off: everything published there is on the other clusters' disks."""
    chosen = read_config(config)
    urls = chosen.cluster(cluster).admin_urls
    if chosen.links:
        read_link_token(chosen.replication.token_file)  # refused at once, not when all is delivered
    news = threading.Event()
    if timeout != 0:
        for link in chosen.links:
            if link.source == cluster:
                _listen(chosen, cluster, link.target, news)
    show = _silent if as_json else _shower()
    time_left = _TimeLeft(timeout)
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        news.set()

    kept = signal.signal(signal.SIGTERM, stop)
    try:
        while True:
            news.clear()
            state = look(urls, chosen, cluster, time_left)
            show(state)
            if state["safe"] or stopped.is_set() or time_left.over:
                break
            news.wait(min(LOOK_S, time_left.seconds))
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


class _TimeLeft:
    """The rest of `--timeout`.

    Args:
        timeout_s: None: no end; 0: one look, of any duration.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._one_look = timeout_s == 0
        self._until = math.inf if timeout_s is None else time.monotonic() + timeout_s

    @property
    def seconds(self) -> float:
        """The seconds until the end; 0 after it."""
        return max(0.0, self._until - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether this was the last look."""
        return self.seconds == 0

    @property
    def patience_s(self) -> float:
        """The timeout of an answer."""
        return TIMEOUT_S if self._one_look else max(PATIENCE_S, min(TIMEOUT_S, self.seconds))

    @property
    def too_late(self) -> bool:
        """Whether nothing more is to be asked in this look."""
        return self.over and not self._one_look


def look(urls: Sequence[str], config: Config, cluster: str, time_left: _TimeLeft) -> dict[str, Any]:
    """The reasons why the cluster cannot be switched off, with `unconfirmed`: entries that destinations do not have on
    disk although the link says so.

    Raises:
        MagnetarError: the cluster itself does not answer, or another cluster answers.
    """
    client = AdminClient(urls, timeout_s=time_left.patience_s)

    def ask() -> dict[str, Any]:
        answer: dict[str, Any] = client.get("/geo/v1/drain")
        return answer

    state = ask()
    if state["cluster"] != cluster:
        raise MagnetarError(f"{client.base_url} is {state['cluster']}, not {cluster}: check the configuration")
    state["unconfirmed"] = []
    if state["safe"]:
        state["unconfirmed"] = unconfirmed(config, cluster, state["links"], time_left)
        # The questions took time: clients that connected in the meantime count.
        state |= {"safe": not state["unconfirmed"] and ask()["safe"]}
    return state


def unconfirmed(config: Config, cluster: str, links: list[dict[str, Any]], time_left: _TimeLeft) -> list[str]:
    """A line for each destination, or topic of it, that does not have on disk what its link takes for delivered."""
    from magnetar.runtime.network.link_client import LinkClient

    lines: list[str] = []
    for link in links:
        target = link["target"]
        try:
            if time_left.too_late:
                raise MagnetarError("no time is left")
            token = read_link_token(config.replication.token_file)
            timeout_ms = math.ceil(time_left.patience_s * 1000)
            with (
                LinkClient.connect(config.link_addresses(cluster), token, timeout_ms=timeout_ms) as here,
                LinkClient.connect(config.link_addresses(target), token, timeout_ms=timeout_ms) as there,
            ):
                lines += _compare(here, there, cluster, target, link.get("topics_linked", 0), time_left)
        except MagnetarError as error:
            lines.append(f"{cluster}:{target}: {target} cannot be asked what it has: {error}")
    return lines


def _compare(
    here: "LinkClient", there: "LinkClient", cluster: str, target: str, linked: int, time_left: _TimeLeft
) -> list[str]:
    """Compare a link with one destination.

    Args:
        here, there: connections to both clusters.
        cluster, target: their names.
        linked: number of topics of the link; a role without permission for all of them sees only the others.
        time_left: for the whole comparison.
    """
    from magnetar.wire import pulsar_pb2 as pb

    listed = here.topics(target)
    known = [state for state in listed.topics if not state.removed]
    lines = []
    if len(known) < linked:
        lines.append(
            f"{cluster}:{target}: the link token may not replicate {linked - len(known):,} of {linked:,} topics, of which "
            f"{target} cannot be asked"
        )
    for at in range(0, len(known), TOPICS_PER_HANDSHAKE):
        if time_left.too_late:
            raise MagnetarError("no time is left")
        states = {state.topic: state for state in known[at : at + TOPICS_PER_HANDSHAKE]}
        queries = [
            pb.GeoWatermarkQuery(
                topic=name, incarnation=state.incarnation, partitions=state.partitions, last=state.last,
                start=state.cursor.c,
            )
            for name, state in states.items()
        ]  # fmt: skip
        answer = there.watermarks(cluster, listed.uuid, queries)
        if answer.blocked:
            return [f"{cluster}:{target} blocked: {answer.blocked}: {answer.reason}"]
        for watermark in answer.topics:
            sent = states.pop(watermark.topic).cursor.s
            has = Position(watermark.persisted.ledger, watermark.persisted.entry)
            if has < Position(sent.ledger, sent.entry):
                lost = f"{target} has lost data; it will be sent again"
                lines.append(f"{cluster}:{target} {watermark.topic}: {watermark.reason if watermark.blocked else lost}")
        if states:
            lines.append(f"{cluster}:{target} {min(states)}: {target} does not say what it has")
    return lines


def _listen(config: Config, cluster: str, target: str, news: threading.Event) -> None:
    """Set `news` whenever the state of a link changes, from a thread that ends with the process."""

    def run() -> None:
        from magnetar.runtime.network.link_client import LinkClient

        addresses = config.link_addresses(cluster)
        while True:
            try:
                token = read_link_token(config.replication.token_file)
                with LinkClient.connect(addresses, token) as client:
                    listed = client.topics(target)
                    while True:
                        listed = client.topics(target, listed.counter, boot=listed.boot, wait_ms=POLL_MS)
                        news.set()
                        time.sleep(PAUSE_S)  # no program checks more often
            except MagnetarError:
                time.sleep(LOOK_S)  # the main thread looks at least as often, and says what is wrong

    threading.Thread(target=run, name=f"link to {target}", daemon=True).start()


# --------------------------------------------------------------------------------------------------------------- output


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
        "; ".join(lines[:NAMED_MAX]) + (f"; and {more} more reasons" if more > 0 else "")
        or "a client has just published"
    )


def notes(state: dict[str, Any]) -> list[str]:
    """Facts that a switched-off cluster takes with it although its links are done."""
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
    """Progress without a terminal: a line when it has changed, at most one per second."""

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

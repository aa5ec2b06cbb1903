"""`magnetar restore`: copy messages that a cluster lost with its disk back from a peer."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from magnetar.admin.client import segment
from magnetar.cli.commands.drain import LOOK_S
from magnetar.cli.commands.verify import SETTINGS
from magnetar.cli.shared.common import (
    ConfigOption,
    JsonOption,
    cell,
    print_json,
    print_line,
    print_rows,
    read_config,
    size,
    with_spark,
)
from magnetar.cli.shared.targets import client_of
from magnetar.core.config import Config
from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName
from magnetar.core.secret_file import read_link_token

if TYPE_CHECKING:
    from magnetar.jobs.restore import Restored
    from magnetar.jobs.restore_plan import PlannedTopic

EXAMPLE = "magnetar restore us-west --from us-east"

TIMEOUT_S: Final = 30.0
"""The timeout of an inventory: it goes through all topics."""

STATES_S: Final = 60.0
"""The longest time to wait for the rest of the peer's link: a link that is down must not stop a restore."""

LOOK_MS: Final = int(LOOK_S * 1000)

COLUMNS = ("topic", "held", "here_before", "restored", "missing", "gaps", "detail")
PLAN_COLUMNS = ("topic", "held", "here_before", "to_restore", "gaps")


def restore(
    cluster: Annotated[
        str, typer.Argument(metavar="CLUSTER", help="The cluster that lost its disk; its broker must run.")
    ],
    peer: Annotated[str, typer.Option("--from", metavar="CLUSTER", help="A cluster that has its messages.")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be repeated. Default: all."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be restored; change nothing.")] = False,
    config: ConfigOption = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master; default: the configuration's.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Restore the messages of a cluster that lost its disk, once and in order; may be stopped and repeated at any
    time.
    """
    chosen = read_config(config)
    if cluster == peer:
        raise MagnetarError(f"{cluster} cannot be restored from itself: name another cluster with --from")
    sides = Sides(chosen, cluster, peer, [str(TopicName.parse(one)) for one in topic or ()])
    before = sides.plan()
    say: Callable[[str], None] = (lambda _line: None) if as_json else print_line
    for name in sides.unknown(before):
        say(f"note: {peer} holds nothing of {name} from before {cluster} lost its disk")
    if dry_run:
        _show_plan(before, as_json)
        return
    found: list[Restored] = []
    if any(one.missing for one in before):
        sides.wait_for_states(say)
        # Messages that arrived in the meantime (another restore, retention) count.
        before = sides.plan()
        with sides.progress(sum(one.missing for one in before), say):
            found = with_spark(lambda: _run(chosen, sides, before, master))
    _report(sides, before, sides.plan() if found else before, found, as_json)


class Sides:
    """Both clusters of a restore.

    Args:
        config: has both.
        cluster: which lost its disk.
        peer: which holds its messages.
        topics: full names; none: all.

    Raises:
        ConfigError: no such cluster.
    """

    def __init__(self, config: Config, cluster: str, peer: str, topics: Sequence[str]) -> None:
        self.config, self.cluster, self.peer, self.topics = config, cluster, peer, topics
        self.token = read_link_token(config.replication.token_file)
        self._here = client_of(config, cluster, timeout_s=TIMEOUT_S)
        self._there = client_of(config, peer, timeout_s=TIMEOUT_S)

    def plan(self) -> "list[PlannedTopic]":
        """Compare what both hold now.

        Raises:
            MagnetarError: one does not answer, or is another cluster than the file says.
        """
        from magnetar.jobs.restore_plan import chosen_by, compare

        for client, name in ((self._here, self.cluster), (self._there, self.peer)):
            answer = client.get("/geo/v1/status")["cluster"]
            if answer != name:
                raise MagnetarError(
                    f"{client.base_url} answers as cluster {answer}, not {name}: check the configuration"
                )
        path = f"/geo/v1/held/{segment(self.cluster)}"
        return compare(self._there.get(path), self._here.get(path), chosen_by(self.topics))

    def unknown(self, plan: "Sequence[PlannedTopic]") -> list[str]:
        """Topics that were named and of which the peer holds nothing to give back: a name that is misspelt looks like that."""
        from magnetar.jobs.restore_plan import chosen_by

        return [name for name in self.topics if not any(map(chosen_by([name]), (one.topic for one in plan)))]

    def wait_for_states(self, say: Callable[[str], None]) -> None:
        """Wait until the link from the peer has delivered everything, at most for `STATES_S`.

        In addition to the peer's messages, it carries the acknowledgements of its replicated subscriptions. A message
        that is restored after them is acknowledged when it is stored; one that is restored before them is delivered
        again.
        """
        from magnetar.runtime.network.link_client import LinkClient

        if not any((link.source, link.target) == (self.peer, self.cluster) for link in self.config.links):
            return
        until = time.monotonic() + STATES_S
        waiting: set[str] | None = None

        def left() -> int:
            """For a busy topic it is enough that its link was at the end once; the set of topics is known when all are
            named.
            """
            nonlocal waiting
            names, more = self._behind()
            if waiting is not None:
                waiting &= names
            elif not more:
                waiting = names
            return len(names) + more if waiting is None else len(waiting)

        behind = left()
        if behind:
            say(f"waiting for the link {self.peer}:{self.cluster} to bring the subscriptions' states first")
        try:
            with LinkClient.connect(self.config.link_addresses(self.peer), self.token) as client:
                answer = client.topics(self.cluster)
                while behind and (left_ms := int((until - time.monotonic()) * 1000)) > 0:
                    # A poll does not report entries that a link skips without its pipeline: so the state is checked now
                    # and then.
                    answer = client.topics(
                        self.cluster, answer.counter, boot=answer.boot, wait_ms=min(left_ms, LOOK_MS)
                    )
                    behind = left()
        except MagnetarError as error:
            say(cell(f"note: {self.peer} does not report the position of its link: {error}"))
        if behind:
            say(
                f"note: the link {self.peer}:{self.cluster} is behind in {behind:,} topics: replicated subscriptions "
                f"may be given messages again there that they consumed before"
            )

    def _behind(self) -> tuple[set[str], int]:
        """Topics of which the peer's link has not delivered everything, and the number of further ones."""
        links = [link for link in self._there.get("/geo/v1/drain")["links"] if link["target"] == self.cluster]
        names = {topic["topic"] for link in links for topic in link["topics"]}
        return names, sum(link["topics_waiting"] - len(link["topics"]) for link in links)

    @contextmanager
    def progress(self, messages: int, say: Callable[[str], None]) -> Iterator[None]:
        """Report from time to time how much was restored."""
        end = threading.Event()
        start = self._restored()

        def watch() -> None:
            said = -1
            while not end.wait(LOOK_S):
                try:
                    count = max(0, self._restored() - start)
                except MagnetarError:
                    continue  # it is being started again; the job waits for it, too
                if count != said:
                    said = count
                    say(f"restored {min(count, messages):,} of {messages:,} messages")

        thread = threading.Thread(target=watch, name="progress", daemon=True)
        say(f"restoring {messages:,} messages of {self.cluster} from {self.peer}")
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join(TIMEOUT_S)

    def _restored(self) -> int:
        return int(self._here.get("/geo/v1/status")["restored"]["messages"])


def _run(config: Config, sides: Sides, plan: "Sequence[PlannedTopic]", master: str | None) -> "list[Restored]":
    """Run the job in a Spark session of its own.

    Raises:
        MagnetarError: no Java, a cluster that stays away.
    """
    from magnetar.jobs.restore import TASK_FAILURES_MAX, with_task_attempts
    from magnetar.jobs.restore import restore as run
    from magnetar.spark_session import session

    session.find_java()
    with tempfile.TemporaryDirectory(prefix="magnetar-restore-") as folder:
        log = Path(folder) / "spark.log"
        spark = session.build(
            app="magnetar restore",
            master=with_task_attempts(master or config.replication.master),
            log=log,
            settings=SETTINGS | {"spark.task.maxFailures": str(TASK_FAILURES_MAX)} | config.replication.spark,
            lasting=False,
        )
        try:
            return run(
                spark,
                [one for one in plan if one.missing],
                cluster=sides.cluster,
                address=str(config.link_addresses(sides.cluster)),
                peer=sides.peer,
                peer_address=str(config.link_addresses(sides.peer)),
                token_file=config.replication.token_file,
            )
        finally:
            session.stop(spark, log)


def _show_plan(plan: "Sequence[PlannedTopic]", as_json: bool) -> None:
    rows = [
        {
            "topic": one.topic, "held": one.held, "here_before": one.held - one.missing, "to_restore": one.missing,
            "gaps": one.gaps, "bytes": one.bytes,
        }
        for one in plan
    ]  # fmt: skip
    print_rows(rows, PLAN_COLUMNS, as_json=as_json)
    if not as_json:
        total, held = sum(one.missing for one in plan), sum(one.bytes for one in plan)
        print_line(f"{total:,} messages would come back; the peer holds {size(held)} of this cluster")


def _report(
    sides: Sides,
    before: "Sequence[PlannedTopic]",
    after: "Sequence[PlannedTopic]",
    found: "Sequence[Restored]",
    as_json: bool,
) -> None:
    """Print what came back, and fail when something that the peer holds did not.

    Raises:
        MagnetarError: in one line, which topic and why.
    """
    earlier = {one.topic: one.missing for one in before}
    reports = {one.topic: one for one in found}
    rows: list[dict[str, Any]] = []
    for one in after:
        was = earlier.get(one.topic, one.missing)
        report = reports.get(one.topic)
        rows.append(
            {
                "topic": one.topic, "held": one.held, "here_before": one.held - was, "restored": max(0, was - one.missing),
                "missing": one.missing, "gaps": one.gaps,
                "detail": f"blocked: {report.blocked}: {report.reason}" if report is not None and report.blocked else "",
            }
        )  # fmt: skip
    restored, missing, gaps = (sum(row[key] for row in rows) for key in ("restored", "missing", "gaps"))
    if as_json:
        print_json(
            {
                "cluster": sides.cluster, "from": sides.peer, "restored": restored, "missing": missing, "gaps": gaps,
                "topics": rows,
            }
        )  # fmt: skip
    else:
        if rows:
            print_rows(rows, COLUMNS, as_json=False)
        if gaps:
            print_line(
                f"{gaps:,} messages are not in {sides.peer}: restricted to other clusters, deleted there, or never "
                "delivered; another --from may have them"
            )
        print_line(f"{sides.cluster} got {restored:,} messages back from {sides.peer}")
    if missing:
        stuck = next((row for row in rows if row["missing"] and row["detail"]), None)
        why = f"{stuck['topic']} {stuck['detail']}" if stuck else "run the command again"
        raise MagnetarError(cell(f"{missing:,} messages that {sides.peer} holds did not come back: {why}"))

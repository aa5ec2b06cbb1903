"""`magnetar failover`: the planned move of a subscription from one cluster to another.

    fence at A -> A has written the final state -> B has merged it -> activate at B -> A sends its consumers to B

Each step is a request that may be repeated, so the command may be killed at any point and run again. If it cannot be
finished, B is asked to give up and A becomes active again; one line reports what is certain and what is not.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import typer

from magnetar.admin.client import AdminClient, AdminError, segment
from magnetar.cli.shared.common import ConfigOption, JsonOption, duration, print_json, print_line, read_config
from magnetar.core.errors import MagnetarError
from magnetar.core.hints import command
from magnetar.core.names import TopicName, check_subscription

EXAMPLE = "magnetar failover persistent://public/default/orders billing --from us-west --to us-east"

POLL_MS: Final = 5_000
"""The duration of one long poll. Well below the client's timeout; a longer one saves nothing."""

POLL_S_MIN: Final = 0.1
"""A poll that was answered sooner without news was not held: the broker holds its maximum already."""

REQUEST_S: Final = 10.0
"""The timeout of a request that waits only for a disk."""

RECONNECT_S: Final = 0.25
"""Between two attempts to reach a broker that is down, or a cluster of which no broker serves; there is no event to wait for."""

_T = TypeVar("_T")
Row = dict[str, Any]
Run = list[Any]
"""[origin cluster, topic incarnation there, first origin index, last]."""


class Stuck(MagnetarError):
    """It cannot be finished; everything has to be put back."""


class Refused(MagnetarError):
    """The source does not accept the last step for one topic or partition; the others still have to be informed."""


class Report(NamedTuple):
    """The result of a failover.

    Attributes:
        messages: messages that were not yet in the target when it began.
        redelivered: messages that were sent to consumers of the source and not acknowledged there: they are
            redelivered. In snapshot mode also messages that were acknowledged there before a seek in the target.
        skipped: messages that are not acknowledged in the source but count as acknowledged in the target: no consumer
            would get them, unless the target's own consumers have had them.
        pause_ms: time from the last message of the source until the target is active.
    """

    topic: str
    subscription: str
    source: str
    target: str
    partitions: int
    messages: int
    consumers: int
    redelivered: int
    skipped: int
    pause_ms: int
    tokens: dict[str, str]


def failover(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    subscription: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    source: Annotated[str, typer.Option("--from", metavar="A", help="The cluster where it is consumed now.")],
    target: Annotated[str, typer.Option("--to", metavar="B", help="The cluster where it will be consumed.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen; change nothing.")] = False,
    timeout: Annotated[
        float, typer.Option(min=1, max=3600, metavar="SECONDS", help="Give up after this time and restore A.")
    ] = 30.0,
    grace_ms: Annotated[
        int,
        typer.Option(
            "--grace-ms",
            min=0,
            max=60_000,
            help="Time to wait for the last acknowledgements; up to 10 s while they arrive fast enough.",
        ),
    ] = 1_000,
    force: Annotated[
        bool,
        typer.Option("--force", help="Even if consumers acknowledge cumulatively and will have to be restarted."),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a subscription to another cluster without losing or repeating a message; its consumers follow."""
    chosen = read_config(config)
    name, sub = TopicName.parse(topic), check_subscription(subscription)
    if not name.persistent:
        raise MagnetarError(f"{name} is not persistent: it has no subscriptions that could be moved")
    if source == target:
        raise MagnetarError(f"--from and --to are both {source}: name two clusters")
    clients = [AdminClient(chosen.cluster(cluster).admin_urls, timeout_s=REQUEST_S) for cluster in (source, target)]
    move = Move(name, sub, source, target, clients[0], clients[1], say=_silent if as_json else print_line)
    plan = move.plan(force=force or dry_run)
    if dry_run:
        if as_json:
            print_json(plan)
        return
    with ended_by_signals():
        report = move.run(timeout, grace_ms)
    if as_json:
        print_json(report._asdict())


def _silent(_text: str) -> None:
    """JSON is all that is printed."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Handle SIGTERM, and SIGHUP when a terminal or a connection closes, like Ctrl-C, so that no subscription stays
    fenced. Later signals are ignored, because both the system and the shell may send one.
    """

    def end(*_: object) -> None:
        for number in kept:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    kept = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        for number in kept:
            signal.signal(number, end)
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class Move:
    """One failover.

    Args:
        topic, subscription: what.
        source, target: clusters.
        at_source, at_target: their REST interfaces.
        say: prints a line.
    """

    def __init__(
        self,
        topic: TopicName,
        subscription: str,
        source: str,
        target: str,
        at_source: AdminClient,
        at_target: AdminClient,
        *,
        say: Callable[[str], None],
    ) -> None:
        self.topic, self.subscription, self.source, self.target = topic, subscription, source, target
        self._a, self._b, self._say = at_source, at_target, say
        self._rows: list[Row] = []
        self._there: list[Row] = []
        self._force = False
        self._above = ""
        self._tokens: dict[str, str] = {}
        self._deadline = 0.0
        self._fenced = self._silent = False
        self._uncertain: set[str] = set()

    @property
    def _unfence(self) -> str:
        """The command that ends what a failover left at the source."""
        return command("subscriptions", "unfence", str(self.topic), self.subscription, "--in", self.source)

    @property
    def _what(self) -> str:
        return f"subscription {self.subscription} of {self.topic}"

    def _path(self, topic: str, *rest: str) -> str:
        name = TopicName.parse(topic)
        parts = ["persistent", name.tenant, name.namespace, name.local, self.subscription, *rest]
        return "/geo/v1/failover/" + "/".join(segment(part) for part in parts)

    # --------------------------------------------------------------------------------------------------- beforehand

    def plan(self, *, force: bool = False) -> Row:
        """Find out whether it can be done, and say what will happen; changes nothing.

        Args:
            force: also if consumers will have to be restarted.

        Raises:
            MagnetarError: it cannot be done; says why.
        """
        rows = self._ask(self._a, self.source, lambda: self._a.get(self._path(str(self.topic))))
        try:
            there = self._ask(self._b, self.target, lambda: self._b.get(self._path(str(self.topic))))
        except AdminError as error:
            if error.status != 404:
                raise
            there = []  # made by the first update
        for cluster, found in ((self.source, rows), (self.target, there)):
            if found and (said := found[0].get("cluster", cluster)) != cluster:
                raise MagnetarError(
                    f"the http address of cluster {cluster} answers as cluster {said}: check both http "
                    "addresses in the configuration"
                )
        self._rows, self._there, self._force = rows, there, force
        self._above = max((text for row in there for text in (row["token"], row["given_up"])), key=_order, default="")
        # Named here, so that a failover can be called off whose first step was not answered. (Older brokers do not
        # report `next`.)
        self._tokens = {
            row["topic"]: _later(row["next"], self._above, self.source)
            for row in rows
            if row["phase"] == "active" and row.get("next")
        }
        for row in rows:
            self._check(row)
        for row in there:
            if row["phase"] in {"fencing", "fenced"}:
                raise MagnetarError(f"{self._what} is {_phase(row)} in {self.target} as well; end that first")
            if not row["replicated"]:
                raise MagnetarError(
                    f"{self._what} is not replicated in {self.target}, which ignores its state: "
                    f"{command('subscriptions', 'replicate', str(self.topic), self.subscription, '--everywhere')}"
                )
        warnings = self._warnings(rows, there, force=force)
        links = [row["links"][self.target] for row in rows]
        plan = {
            "topic": str(self.topic),
            "subscription": self.subscription,
            "source": self.source,
            "target": self.target,
            "partitions": len(rows),
            "messages": sum(link["lag_messages"] for link in links),
            "acknowledgements": sum(map(self._to_sync, rows)),
            "consumers": sum(row["consumers"] for row in rows),
            "in_flight": sum(row["in_flight"] for row in rows),
            "backlog": sum(row["backlog"] for row in rows),
            "warnings": warnings,
        }
        self._say(
            f"{self._what}: {self.source} -> {self.target}"
            + (f", {len(rows)} partitions" if len(rows) > 1 else "")
            + f": {plan['messages']:,} messages are not yet in {self.target}, "
            f"{plan['acknowledgements']:,} acknowledgements are to be sent, {plan['in_flight']:,} are under way, "
            f"{plan['consumers']:,} consumers are connected and will follow"
        )
        for warning in warnings:
            self._say(f"note: {warning}")
        return plan

    def _to_sync(self, row: Row) -> int:
        """The number of acknowledgements of the source that the target lacks, for messages that it holds or that are on
        their way.

        Markers that the source has written do not show how far they have arrived, so both clusters are compared. A
        target without the subscription has nothing to compare; the first marker that arrives there creates it.
        """
        unsettled = row["links"][self.target].get("unsettled")
        runs = [unsettled] if unsettled is not None else []
        if row["topic"] in {there["topic"] for there in self._there}:
            return self._behind(row, runs)
        under_way = self._acknowledged(self._a, self.source, row["topic"], runs) if runs else 0
        return max(int(row.get("unsent", 0)), under_way)

    def _behind(self, row: Row, more: Sequence[Run] = ()) -> int:
        """Messages that are acknowledged in the source and not in the target, which may lack `more` altogether."""
        return self._acknowledged_in((self._b, self.target), (self._a, self.source), row["topic"], more)

    def _acknowledged_in(
        self, lacks: tuple[AdminClient, str], has: tuple[AdminClient, str], topic: str, more: Sequence[Run] = ()
    ) -> int:
        """The number of messages, by identity, that one cluster has not acknowledged and the other one has."""
        one, name = lacks
        runs = self._ask(one, name, lambda: one.get(self._path(topic, "unacknowledged")))["runs"]
        return self._acknowledged(*has, topic, [*runs, *more])

    def _acknowledged(self, client: AdminClient, cluster: str, topic: str, runs: Sequence[Run]) -> int:
        """The number of these messages that a cluster holds and has acknowledged."""
        path = self._path(topic, "acknowledged")
        return int(self._ask(client, cluster, lambda: client.post(path, {"runs": runs}))["messages"])

    def _check(self, row: Row) -> None:
        if row["phase"] != "active" and row["target"] != self.target:
            raise MagnetarError(
                f"{self._what} is {_phase(row)} in {self.source} (failover {row['token']}); to end that: "
                f"{self._unfence}"
            )
        if row["refused"]:
            raise MagnetarError(f"{self._what} cannot be moved: {row['refused']}")
        link = row["links"].get(self.target)
        if link is None:
            raise MagnetarError(
                f"{row['topic']} has no link {self.source} -> {self.target}: there is none in clusters.toml, or its policy "
                f"replication-clusters, its own or its namespace's, does not name {self.target}"
            )
        if row["phase"] == "moved":
            return
        for trouble, remedy in (
            (link["paused"], f"is paused: magnetar links resume {self.source}:{self.target}"),
            (link["blocked"], f"is blocked ({link['blocked']}): magnetar status says why"),
            (not link["lease"], "is not served by a pipeline: magnetar replicate"),
            (link["trouble"], f"is down: {link['trouble']}"),
        ):
            if trouble:
                raise MagnetarError(f"link {self.source} -> {self.target} of {row['topic']} {remedy}")

    def _warnings(self, rows: list[Row], there: list[Row], *, force: bool) -> list[str]:
        found = []
        if any(row["links"].get(self.source) is None for row in there):
            found.append(
                f"there is no link {self.target} -> {self.source}: acknowledgements there are not replicated back, and "
                "the subscription cannot be moved back"
            )
        if stuck := self._stuck(rows, there):
            if not force:
                raise MagnetarError(f"{stuck}; to move them all the same: --force")
            found.append(stuck)
        return found

    def _stuck(self, rows: list[Row], there: list[Row]) -> str:
        """Whether consumers would take messages of the target for acknowledged ones: their clients compare message ids."""
        firsts = {row["topic"]: _position(row["first"]) for row in there}
        stuck = sum(row["cumulative"] for row in rows if firsts.get(row["topic"], (0, 0)) <= _position(row["last"]))
        if not stuck:
            return ""
        return (
            f"{stuck:,} consumers acknowledge cumulatively, and message ids in {self.target} are lower than in "
            f"{self.source}: their clients will take new messages for acknowledged ones and not deliver them until the "
            "application is restarted"
        )

    # ---------------------------------------------------------------------------------------------------- the steps

    def run(self, timeout_s: float, grace_ms: int) -> Report:
        """Do it.

        Raises:
            MagnetarError: it could not be finished; says in which state everything is.
        """
        self._deadline = time.monotonic() + timeout_s
        messages = sum(row["links"][self.target]["lag_messages"] for row in self._rows)
        consumers = sum(row["consumers"] for row in self._rows)
        try:
            started = time.monotonic()
            body = {"to": self.target, "above": self._above, "grace_ms": grace_ms, "tokens": self._tokens}
            self._rows = self._ask(
                self._a, self.source, lambda: self._a.post(self._path(str(self.topic), "fence"), body)
            )
            self._fenced = True
            self._say(f"fenced in {self.source}: no message is dispatched there")
            self._await_final()
            # The first acknowledgement of a consumer that has just come may have been under way before.
            if not self._force and (stuck := self._stuck(self._rows, self._there)):
                raise Stuck(f"{stuck}; to move them all the same: --force")
            self._await_merged()
            skipped = sum(map(self._skipped, self._rows))
            again = sum(map(self._again, self._rows))
            for row in self._rows:
                self._activate(row)
            pause_ms = round((time.monotonic() - started) * 1000)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - after any error no client may be left unserved
            raise MagnetarError(self._called_off(error)) from (None if isinstance(error, MagnetarError) else error)
        done = self._complete_all()
        report = Report(
            str(self.topic),
            self.subscription,
            self.source,
            self.target,
            len(done),
            messages,
            consumers,
            redelivered=again + sum(row["left"] for row in done),
            skipped=skipped,
            pause_ms=pause_ms,
            tokens={row["topic"]: row["token"] for row in done},
        )
        self._say(
            f"active in {self.target}: {report.redelivered:,} messages re-delivered, {report.skipped:,} skipped, "
            f"pause {duration(pause_ms)}"
        )
        return report

    def _await_final(self) -> None:
        self._rows = [self._final_of(row) for row in self._rows]

    def _final_of(self, row: Row) -> Row:
        path = self._path(row["topic"], "wait")
        while not row["final"]:
            if row["phase"] not in {"fencing", "fenced"}:
                raise Stuck(f"another command ended the failover: it is {_phase(row)} in {self.source}")
            query = {"since": row["version"], "wait_ms": self._poll_ms("the final state was not written")}
            asked, since = time.monotonic(), row["version"]
            row = self._ask(self._a, self.source, partial(self._a.get, path, query))
            if row["version"] == since and not row["final"]:
                _pause(asked)
        return row

    def _await_merged(self) -> None:
        for row in self._rows:
            while row["phase"] != "moved":
                why = f"{self.target} did not confirm the final state of {row['topic']} ({row['final']})"
                query = {"source": self.source, "position": row["final"], "wait_ms": self._poll_ms(why)}
                path, asked = self._path(row["topic"], "merged"), time.monotonic()
                if self._ask(self._b, self.target, partial(self._b.get, path, query))["merged"]:
                    break
                _pause(asked)
        self._say(f"{self.target} has the final state")

    def _skipped(self, row: Row) -> int:
        """Compare by identity: messages that the source has not acknowledged must not be acknowledged in the target."""
        if row["phase"] == "moved":
            return 0
        return self._acknowledged_in((self._a, self.source), (self._b, self.target), row["topic"])

    def _again(self, row: Row) -> int:
        """The number of messages that are acknowledged in the source and are redelivered: in snapshot mode, because of
        a seek in the target.
        """
        return self._behind(row) if row.get("mode") == "snapshot" and row["phase"] != "moved" else 0

    def _activate(self, row: Row) -> None:
        body = {"tokens": {row["topic"]: row["token"]}}
        self._uncertain.add(row["topic"])
        self._ask(self._b, self.target, lambda: self._b.post(self._path(row["topic"], "activate"), body))

    def _complete_all(self) -> list[Row]:
        """Complete all partitions at the source, also after it refused one, but not after it did not answer.

        Raises:
            MagnetarError: one could not be completed; the error reports the state of everything.
        """
        done: list[Row] = []
        refused: list[str] = []
        try:
            for row in self._rows:
                try:
                    done.append(self._complete(row))
                except Refused as error:
                    refused.append(str(error))
        except KeyboardInterrupt:
            raise MagnetarError(
                f"interrupted: {self._what} is active in {self.target}, but not all partitions in {self.source} "
                "redirect their consumers; it stays fenced there: run the same command again"
            ) from None
        if refused:
            raise MagnetarError("; ".join(dict.fromkeys(refused)))
        return done

    def _complete(self, row: Row) -> Row:
        """Inform the source that the target is active, with retries until the timeout.

        Raises:
            Refused: the source does not accept it.
            MagnetarError: it does not answer, or cannot do it.
        """
        body = {"tokens": {row["topic"]: row["token"]}}
        while True:
            try:
                answer: list[Row] = self._ask(
                    self._a, self.source, lambda: self._a.post(self._path(row["topic"], "complete"), body)
                )
                return answer[0]
            except MagnetarError as error:
                if isinstance(error, AdminError) and error.status == 409:
                    raise Refused(
                        f"{self._what} is active in {self.target}, and another command changed it in {self.source}: {error}; it "
                        "may be active in both, messages may come twice"
                    ) from None
                if isinstance(error, AdminError) and error.status < 500:
                    raise Refused(
                        f"{self._what} is active in {self.target}, but {self.source} refuses to send its consumers there "
                        f"({error}); if it is fenced there, run the same command again, or: {self._unfence}"
                    ) from None
                if time.monotonic() > self._deadline:
                    raise MagnetarError(
                        f"{self._what} is active in {self.target}, but {self.source} could not be asked to send its consumers "
                        f"there ({error}); it stays fenced, run the same command again when {self.source} is back"
                    ) from None
                threading.Event().wait(RECONNECT_S)

    # -------------------------------------------------------------------------------------------------- calling it off

    def _called_off(self, error: BaseException) -> str:
        """Put everything back; one line that says what is certain."""
        if isinstance(error, KeyboardInterrupt):
            why = "interrupted"
        else:
            why = str(error) if isinstance(error, MagnetarError) else f"unexpected {type(error).__name__}: {error}"
        try:
            return self._back(why, certain=isinstance(error, AdminError) and error.status < 500)
        except KeyboardInterrupt:
            return (
                f"{why}; interrupted again before everything was put back: magnetar status shows fenced subscriptions; "
                "run the same command again"
            )

    def _back(self, why: str, *, certain: bool) -> str:
        """Put everything back.

        Args:
            why: it is called off.
            certain: the source has answered, so that nothing of a request is still under way there.
        """
        called_off = False
        if not self._fenced:
            try:
                # The fence may have been taken although no answer came, or in some partitions only, or may still be.
                called_off = not certain and self._call_off()
                self._rows = self._a.get(self._path(str(self.topic)))
            except MagnetarError:
                return f"{why}; whether {self.source} is fenced is not known: magnetar status says it when it is back"
        # Another failover may have come first, which this one must not end.
        ours = [row for row in self._rows if row["target"] == self.target]
        outcomes = [self._put_back(row) for row in ours if row["phase"] in {"fencing", "fenced"}]
        said = list(dict.fromkeys(outcome for outcome in outcomes if outcome))
        if not outcomes and called_off:
            return f"{why}; called off: {self._what} is active in {self.source} as before"
        if not outcomes and not self._fenced and not certain:
            return f"{why}; {self.source} is not fenced so far, but may still be: magnetar status says it"
        if not outcomes:
            return f"{why}; nothing was changed"
        if not said:
            return f"{why}; put back: {self._what} is active in {self.source} as before"
        if not all(outcomes):
            said.append(f"what is left of it is put back: active in {self.source} as before")
        return "; ".join([why, *said])

    def _call_off(self) -> bool:
        """See to it that a beginning that is still under way comes to nothing; whether that is certain for all partitions."""
        # If a cluster does not answer for one partition, it is not asked about the others.
        return len(self._tokens) == len(self._rows) and all(self._called_off_in(*one) for one in self._tokens.items())

    def _called_off_in(self, topic: str, token: str) -> bool:
        try:
            self._a.post(self._path(topic, "call-off"), {"tokens": {topic: token}})
        except MagnetarError:
            return False  # an older broker, or one that does not answer: then its own state decides
        return True

    def _put_back(self, row: Row) -> str:
        """Make the source active again for one partition; returns "" if it is certain that only the source is
        active.
        """
        body = {"tokens": {row["topic"]: row["token"]}}
        both = ""
        try:
            if self._silent:
                # A cluster that did not answer for one partition would delay each of the others as long again, without
                # service.
                raise MagnetarError(f"{self.target} fell silent")
            self._b.post(self._path(row["topic"], "give-up"), body)
        except AdminError as refused:
            if refused.status == 409:
                try:
                    self._complete(row)
                except MagnetarError as unfinished:
                    return str(unfinished)
                return f"{row['topic']} was activated in {self.target} all the same and is moved"
            if refused.status != 404:  # 404: the subscription has not come there, so there is nothing to activate
                both = self._both(row, f"refused to give up ({refused})")
        except MagnetarError:
            self._silent = True
            both = self._both(row, "fell silent")
        try:
            self._a.post(self._path(row["topic"], "put-back"), body)
        except MagnetarError as problem:
            return (
                f"{self.source} could not be put back ({problem}): it is still fenced there; run the command again, or "
                f"{command('subscriptions', 'unfence', row['topic'], self.subscription, '--in', self.source)}"
            )
        return f"put back: active in {self.source}; {both}" if both else ""

    def _both(self, row: Row, what: str) -> str:
        """The uncertainty about a partition whose target did not give up; "" if the target was not asked to activate it
        either.
        """
        if row["topic"] not in self._uncertain:
            return ""
        return (
            f"{self.target} may have become active before it {what}: then it is active in both clusters and "
            "messages may come twice"
        )

    # -------------------------------------------------------------------------------------------------------- asking

    def _poll_ms(self, why: str) -> int:
        left_ms = round((self._deadline - time.monotonic()) * 1000)
        if left_ms <= 0:
            raise Stuck(f"{why} in time")
        return min(POLL_MS, left_ms)

    def _ask(self, client: AdminClient, cluster: str, request: Callable[[], _T]) -> _T:
        """A request whose failure names the cluster.

        A cluster of several brokers may be in the middle of a takeover. It gets the time that is left, because each step may be
        repeated.
        """
        while True:
            try:
                return request()
            except AdminError as error:
                raise AdminError(error.status, f"{cluster}: {error.reason}") from None
            except MagnetarError as error:
                if client.brokers == 1 or time.monotonic() >= self._deadline:
                    raise MagnetarError(f"{cluster} does not answer: {error}") from None
                threading.Event().wait(RECONNECT_S)


def _phase(row: Row) -> str:
    return f"{row['phase']}, to {row['target']}" if row["target"] else str(row["phase"])


def _order(token: str) -> tuple[int, str]:
    time_ms, _, cluster = token.partition("@")
    return (int(time_ms) if time_ms else 0, cluster)


def _later(token: str, known: str, cluster: str) -> str:
    """A failover's token that is not earlier than one, and later than another."""
    return f"{max(_order(token)[0], _order(known)[0] + 1)}@{cluster}"


def _pause(asked: float) -> None:
    """Wait a moment before a poll is repeated that began at `asked`, gave no news and was not held."""
    if time.monotonic() - asked < POLL_S_MIN:
        threading.Event().wait(RECONNECT_S)


def _position(text: str) -> tuple[int, int]:
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)

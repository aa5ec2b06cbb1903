"""tenants, namespaces, topics, subscriptions: which request each command makes, and how refusals come out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.admin.client import AdminClient
from magnetar.cli.commands.subscriptions import EARLIEST, LATEST, seek_body
from magnetar.core.errors import MagnetarError
from tests.support.commands import one_line
from tests.unit.cli.conftest import Answer, FakeBroker

Run = Callable[..., Answer]
Pair = tuple[Path, FakeBroker, FakeBroker]
TOPIC = "persistent://public/default/t"
AT = "/admin/v2/persistent/public/default/t"


@pytest.mark.parametrize(
    ("words", "request_made", "body"),
    [
        (
            "tenants create shop --clusters a,b",
            "PUT /admin/v2/tenants/shop",
            {"allowedClusters": ["a", "b"], "adminRoles": []},
        ),
        ("tenants delete shop", "DELETE /admin/v2/tenants/shop", None),
        ("tenants update shop --clusters a,b", "POST /geo/v1/tenants/shop", {"allowedClusters": ["a", "b"]}),
        ("permissions admins shop --roles x,y", "POST /geo/v1/tenants/shop", {"adminRoles": ["x", "y"]}),
        ("namespaces create s/o --clusters a,b", "PUT /admin/v2/namespaces/s/o", {"replication_clusters": ["a", "b"]}),
        ("namespaces create s/o", "PUT /admin/v2/namespaces/s/o", None),
        ("namespaces delete s/o", "DELETE /admin/v2/namespaces/s/o", None),
        ("namespaces set-start s/o latest", "POST /geo/v1/namespaces/s/o/replicationStart", "latest"),
        ("namespaces set-deduplication s/o on", "POST /admin/v2/namespaces/s/o/deduplication", True),
        ("namespaces set-deduplication s/o off", "POST /admin/v2/namespaces/s/o/deduplication", False),
        ("namespaces set-deduplication s/o default", "DELETE /admin/v2/namespaces/s/o/deduplication", None),
        (
            "namespaces set-idempotency s/o request --window 60 --keys 5",
            "POST /geo/v1/namespaces/s/o/idempotency",
            {"property": "request", "windowSeconds": 60, "keysMax": 5},
        ),
        ("namespaces set-idempotency s/o --default", "DELETE /geo/v1/namespaces/s/o/idempotency", None),
        (
            "topics set-idempotency t request",
            "POST /geo/v1/persistent/public/default/t/idempotency",
            {"property": "request", "windowSeconds": 3600, "keysMax": 1_000_000},
        ),
        (
            "topics set-idempotency t --off",
            "POST /geo/v1/persistent/public/default/t/idempotency",
            {"enabled": False},
        ),
        (
            "topics forget-producer t a/b --yes",
            "DELETE /geo/v1/persistent/public/default/t/sequence-ids/a%2Fb",
            None,
        ),
        ("topics give-up t 7:41 --yes", "DELETE /geo/v1/persistent/public/default/t/damaged/7/41", None),
        ("topics set-deduplication t on", "POST /admin/v2/persistent/public/default/t/deduplicationEnabled", True),
        (
            "topics set-deduplication t default",
            "DELETE /admin/v2/persistent/public/default/t/deduplicationEnabled",
            None,
        ),
        ("namespaces set-ttl s/o 60", "POST /admin/v2/namespaces/s/o/messageTTL", 60),
        (
            "namespaces set-retention s/o --minutes 5 --megabytes -1",
            "POST /admin/v2/namespaces/s/o/retention",
            {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1},
        ),
        ("topics create t", f"PUT {AT}", None),
        ("topics create t --partitions 4", f"PUT {AT}/partitions", 4),
        ("topics grow t 8", f"POST {AT}/partitions", 8),
        ("topics unload t", f"PUT {AT}/unload", None),
        (
            "topics set t compaction-delete-retention -1",
            "POST /geo/v1/persistent/public/default/t/compactionDeleteRetention",
            -1,
        ),
        (
            "namespaces set s/o compaction-delete-retention -1",
            "POST /geo/v1/namespaces/s/o/compactionDeleteRetention",
            -1,
        ),
        ("topics truncate t --yes", f"DELETE {AT}/truncate", None),
        ("topics terminate t --yes", f"POST {AT}/terminate", None),
        ("subscriptions create t s", f"PUT {AT}/subscription/s", LATEST),
        ("subscriptions create t s --from 3:4", f"PUT {AT}/subscription/s", {"ledgerId": 3, "entryId": 4}),
        ("subscriptions delete t s --force --yes", f"DELETE {AT}/subscription/s?force=true", None),
        ("subscriptions reset t s earliest", f"POST {AT}/subscription/s/resetcursor", EARLIEST),
        ("subscriptions reset t s 1970-01-01T00:00:01+00:00", f"POST {AT}/subscription/s/resetcursor/1000", None),
        ("subscriptions skip t s 5 --yes", f"POST {AT}/subscription/s/skip/5", None),
        ("subscriptions skip t s all --yes", f"POST {AT}/subscription/s/skip_all", None),
        ("subscriptions expire t s 60 --yes", f"POST {AT}/subscription/s/expireMessages/60", None),
        ("subscriptions delete t a/b%c --yes", f"DELETE {AT}/subscription/a%2Fb%25c?force=false", None),
    ],
)
def test_requests(words: str, request_made: str, body: Any, fake: FakeBroker, run: Run) -> None:
    fake.answer(request_made)
    answer = run(*words.split(), "--admin-url", fake.url)
    assert (answer.code, answer.err) == (0, "")
    assert fake.changes == [(request_made, body)]
    assert answer.out.count("\n") == 1


def test_delete_takes_the_partitions_too(fake: FakeBroker, run: Run) -> None:
    fake.answer(f"GET {AT}/partitions", {"partitions": 4})
    fake.answer(f"DELETE {AT}/partitions?force=false")
    assert run("topics", "delete", "t", "--yes", "--admin-url", fake.url).code == 0
    fake.answer(f"GET {AT}/partitions", {"partitions": 0})
    fake.answer(f"DELETE {AT}?force=true")
    assert run("topics", "delete", "t", "--yes", "--force", "--admin-url", fake.url).code == 0


@pytest.mark.parametrize(
    "words",
    [
        "topics delete t",
        "topics truncate t",
        "topics terminate t",
        "subscriptions delete t s",
        "subscriptions skip t s all",
    ],
)
def test_nothing_is_lost_unasked(words: str, fake: FakeBroker, run: Run) -> None:
    line = one_line(run(*words.split(), "--admin-url", fake.url))
    assert "--yes" in line
    assert fake.changes == []


def test_a_refusal_is_the_brokers_line(fake: FakeBroker, run: Run) -> None:
    fake.answer(f"PUT {AT}", {"reason": "topic t exists already"}, 409)
    assert one_line(run("topics", "create", "t", "--admin-url", fake.url)) == "topic t exists already"


def test_a_broker_that_is_not_there(run: Run) -> None:
    assert "cannot reach http://127.0.0.1:1: connection refused" in one_line(
        run("topics", "list", "--admin-url", "http://127.0.0.1:1")
    )


def test_names_are_checked_before_anything_is_asked(fake: FakeBroker, run: Run) -> None:
    for words in (
        "topics create a/b",
        "namespaces create x",
        "tenants create a/b",
        "subscriptions create t pulsar.repl.x",
    ):
        assert "not valid" in (line := one_line(run(*words.split(), "--admin-url", fake.url))) or "reserved" in line
    assert fake.requests == []


def test_everywhere(pair: Pair, run: Run) -> None:
    path, a, b = pair
    for broker in (a, b):
        broker.answer(f"PUT {AT}")
    answer = run("topics", "create", "t", "--everywhere", "-c", path)
    assert (answer.code, answer.out) == (0, f"a: created {TOPIC}\nb: created {TOPIC}\n")
    b.answer(f"PUT {AT}", {"reason": "exists"}, 409)
    answer = run("topics", "create", "t", "--everywhere", "-c", path)
    assert answer.out == f"a: created {TOPIC}\n"
    assert one_line(answer) == "b: exists"
    assert "leave --admin-url out" in one_line(
        run("topics", "create", "t", "--everywhere", "-c", path, "--admin-url", a.url)
    )


def test_without_a_url_the_first_cluster_is_asked(pair: Pair, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path, a, b = pair
    a.answer("GET /admin/v2/namespaces/public/default/topics?mode=ALL", ["persistent://public/default/of-a"])
    b.answer("GET /admin/v2/namespaces/public/default/topics?mode=ALL", ["persistent://public/default/of-b"])
    assert run("topics", "list", "-c", path, "--json").json == [{"topic": "persistent://public/default/of-a"}]
    assert "of-a" in run("topics", "list").out
    monkeypatch.setenv("MAGNETAR_ADMIN_URL", b.url)
    assert "of-b" in run("topics", "list").out
    assert "of-a" in run("topics", "list", "-c", path).out


def test_lists_of_several_clusters(pair: Pair, run: Run) -> None:
    path, a, b = pair
    a.answer("GET /admin/v2/namespaces/public/default/topics?mode=ALL", [TOPIC])
    b.answer("GET /admin/v2/namespaces/public/default/topics?mode=ALL", {"reason": "broken"}, 500)
    answer = run("topics", "list", "--everywhere", "--json", "-c", path)
    assert answer.json == [{"cluster": "a", "topic": TOPIC}]
    assert one_line(answer) == "b: broken"


def test_stats(fake: FakeBroker, run: Run) -> None:
    fake.answer(f"GET {AT}/partitions", {"partitions": 2})
    stats = {
        "msgInCounter": 7,
        "storageSize": 2_000_000,
        "publishers": [{}, {}],
        "subscriptions": {"s": {"type": "Shared", "msgBacklog": 5, "consumers": [{}], "isDurable": True}},
    }
    fake.answer(f"GET {AT}/partitioned-stats", stats)
    shown = run("topics", "stats", "t", "--admin-url", fake.url).out
    assert TOPIC in shown
    assert "2.0 MB" in shown
    assert run("topics", "stats", "t", "--json", "--admin-url", fake.url).json == [stats]
    row = run("subscriptions", "list", "t", "--json", "--admin-url", fake.url).json[0]
    assert (row["subscription"], row["type"], row["backlog"], row["consumers"]) == ("s", "Shared", 5, 1)


def test_set_clusters_tells_what_is_copied_and_asks(fake: FakeBroker, run: Run) -> None:
    ask = "GET /geo/v1/namespaces/s/o/replicationPreview?clusters=a%2Cb"
    fake.answer(ask, {"added": ["b"], "removed": ["c"], "topics": 3, "entries": 120, "bytes": 90_000})
    fake.answer("POST /admin/v2/namespaces/s/o/replication")
    words = ["namespaces", "set-clusters", "s/o", "a,b", "--admin-url", fake.url]
    answer = run(*words)
    assert "120 entries (90.0 kB) of 3 topics will be copied to each of b" in answer.out
    assert "c gets no new messages" in answer.out
    assert "--yes" in one_line(answer)
    assert fake.changes == []
    assert run(*words, "--yes").code == 0
    assert fake.changes == [("POST /admin/v2/namespaces/s/o/replication", ["a", "b"])]


def test_peek(fake: FakeBroker, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answer(f"GET {AT}/subscription/s/position/2", b"hello\xff")
    assert run("subscriptions", "peek", "t", "s", "--number", "2", "--admin-url", fake.url).out == "hello\\xff\n"
    fake.answer(f"GET {AT}/subscription/s/position/1", {"reason": "fewer than 1"}, 404)
    assert one_line(run("subscriptions", "peek", "t", "s", "--admin-url", fake.url)) == "fewer than 1"
    # A proxy in front of it.
    monkeypatch.setattr(AdminClient, "raw", lambda *_: (502, "application/json", b"{"))
    assert one_line(run("subscriptions", "peek", "t", "s", "--admin-url", fake.url)) == "the broker answered 502"


@pytest.mark.parametrize(
    "text", ["", "x", "1:", ":1", "-1:2", "2026-13-01", "99999-01-01", "9" * 5_000 + ":1", "1:" + "9" * 5_000]
)
def test_no_place(text: str) -> None:
    with pytest.raises(MagnetarError, match="is not a valid position"):
        seek_body(text)


@pytest.mark.parametrize("count", ["0", "-1", "x", "٣", "9" * 5_000])
def test_no_count(run: Run, count: str) -> None:
    said = one_line(run("subscriptions", "skip", "t", "s", "--yes", "--admin-url", "http://127.0.0.1:1", "--", count))
    assert "is not a count" in said and len(said) < 200


def test_a_wrong_url_of_the_environment_names_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETAR_ADMIN_URL", "x")
    assert one_line(run("topics", "list")).startswith("MAGNETAR_ADMIN_URL: 'x' is not a URL")


def test_an_empty_url_is_not_another_broker(run: Run, pair: tuple[Path, FakeBroker, FakeBroker]) -> None:
    """A variable of the user's that is empty."""
    path, a, b = pair
    for words in ((), ("-c", path)):
        answer = run("topics", "delete", "t", "--force", "--yes", "--admin-url", "", *words)
        assert answer.code == 1 and "'' is not a URL of an admin interface" in answer.err
    assert a.requests == b.requests == []


def test_a_sound_topic_is_said_to_be_sound(pair: Pair, run: Run) -> None:
    path, a, b = pair
    own = AT.replace("/admin/v2/", "/geo/v1/") + "/damaged"
    for broker in (a, b):
        broker.answer(f"GET {own}", {TOPIC: []})
    sound = "t: nothing is damaged, no subscription is stopped at an entry that cannot be read\n"
    assert run("topics", "damaged", "t", "-c", path).out == sound
    assert run("topics", "damaged", "t", "--everywhere", "-c", path).out == sound
    assert run("topics", "damaged", "t", "--json", "-c", path).json == []
    b.answer(f"GET {own}", {TOPIC: [{"subscription": "s", "position": "7:41", "reason": "checksum"}]})
    shown = run("topics", "damaged", "t", "--everywhere", "-c", path).out
    assert "7:41" in shown
    assert "nothing" not in shown


def test_a_rate_is_for_a_subscription_that_exists(fake: FakeBroker, run: Run) -> None:
    """REST takes it for any name, as Pulsar's does; by hand another name is a slip."""
    rate = ("subscriptions", "rate", "t-partition-1", "s", "messages=5")
    fake.answer(f"GET {AT}/subscriptions", ["other"])
    fake.answer(f"POST {AT}/s/dispatchRate")
    fake.answer(f"DELETE {AT}/s/dispatchRate")
    assert one_line(run(*rate, "--admin-url", fake.url)) == f"subscription s of {TOPIC} does not exist"
    assert fake.changes == []
    assert run(*rate[:-1], "default", "--admin-url", fake.url).code == 0, "what is left of one can be taken back"
    fake.answer(f"GET {AT}/subscriptions", ["other", "s"])
    assert run(*rate, "--admin-url", fake.url).code == 0
    assert [what for what, _ in fake.changes] == [f"DELETE {AT}/s/dispatchRate", f"POST {AT}/s/dispatchRate"]

"""What `magnetar verify` prints: reports, JSON and progress, without Spark."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from magnetar.cli.commands import verify as command
from magnetar.cli.commands.verify_progress import Bar, Plain
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Identity, Position
from magnetar.jobs.verify import Example, Findings, VerifyProgress, VerifyResult
from tests.spark.fakes import TOKEN, FakeCluster

T = "persistent://public/default/t-partition-1"


def result() -> VerifyResult:
    east = Findings(messages=9, missing=35, missing_before_first=5, altered=2)
    east.examples["missing"] = [Example(T, Identity("west", 4, 7), 3, None, ("west", Position(2, 9)))]
    east.examples["altered"] = [Example(T, Identity("west", 4, 20), 2, Position(6, 1), ("west", Position(2, 13)))]
    return VerifyResult(T, 2, 44, {"east": east, "west": Findings(messages=44)}, 1.5)


def test_lines_name_what_is_wrong_and_how_much_more_there_is() -> None:
    assert command.lines(result()) == [
        (
            "east: 5 of the missing ones are older than all its messages of their origin: "
            "retention deleted them, or the cluster joined late"
        ),
        f"east: missing: {T} west/4/7 and 2 behind it in its entry; there is a copy in west at 2:9",
        "east: missing: 32 more (--examples)",
        f"east: altered: {T} west/4/20 and 1 behind it in its entry at 6:1; it differs from the copy in west at 2:13",
    ]


def test_json_has_everything() -> None:
    document = json.loads(json.dumps(command.as_document(result())))
    assert (document["messages"], document["clean"], document["seconds"]) == (44, False, 1.5)
    east, west = document["clusters"]
    assert (east["cluster"], east["missing"], east["missing_before_first"], east["missing_after_last"]) == (
        "east",
        35,
        5,
        0,
    )
    assert east["examples"]["missing"][0] == {
        "topic": T, "origin": "west", "incarnation": 4, "index": 7, "messages": 3,
        "copy": {"cluster": "west", "position": [2, 9]},
    }  # fmt: skip
    assert east["examples"]["altered"][0]["position"] == [6, 1]
    assert west["examples"] == {}


STEPS = [
    VerifyProgress("reading", 0, 400, 0, 0),
    VerifyProgress("reading", 100, 400, 1000, 64_000),
    VerifyProgress("reading", 100, 400, 1000, 64_000),
    VerifyProgress("reading", 200, 400, 2000, 128_000),
    VerifyProgress("reading", 400, 400, 4000, 256_000),
    VerifyProgress("comparing", 0, 2, 4000, 256_000),
    VerifyProgress("comparing", 2, 2, 4000, 256_000),
    VerifyProgress("comparing", 2, 2, 4000, 256_000),
]


def test_plain_lines_are_few_and_end_with_all() -> None:
    now, written = [0.0], []
    plain = Plain(written.append, lambda: now[0])
    plain.start()
    for step in STEPS:
        now[0] += 1.0
        plain.tell(step)
    assert [line.strip() for line in written] == [
        "0.0 s  starting Spark",
        "1.0 s  reading: 0 of 400 entries; 0 messages, 0 B",
        "3.0 s  reading: 100 of 400 entries; 1,000 messages, 64.0 kB, 500 messages/s",
        "5.0 s  reading: 400 of 400 entries; 4,000 messages, 256.0 kB, 1,000 messages/s",
        "6.0 s  comparing: 0 of 2 stretches of 65,536 indexes",
        "7.0 s  comparing: 2 of 2 stretches of 65,536 indexes",
    ]


def test_the_bar_follows_the_job() -> None:
    out = io.StringIO()
    bar = Bar(Console(file=out, force_terminal=True, width=120))
    bar.start()
    shown = []
    for step in STEPS:
        bar.tell(step)
        active = [task for task in bar._bars.tasks if task.visible]
        shown += [(task.description, task.completed, task.total) for task in active]
    bar.close()
    assert shown == [(step.step, step.done, step.total) for step in STEPS]
    assert "reading" in out.getvalue()


@pytest.mark.parametrize(("clean", "code"), [(True, 0), (False, 3)])
def test_exit_codes(
    clean: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from magnetar.cli import run

    outcome = result() if not clean else VerifyResult(T, 0, 3, {"west": Findings(messages=3)}, 0.1)
    monkeypatch.setattr(command, "ask", lambda *_: 0)
    monkeypatch.setattr(command, "compare", lambda *_: outcome)
    assert run(["verify", "t"]) == code
    printed = capsys.readouterr()
    assert f"{outcome.messages} different messages" in printed.out
    assert "starting Spark" in printed.err
    assert run(["verify", "t", "--json"]) == code
    printed = capsys.readouterr()
    assert json.loads(printed.out)["clean"] is clean
    assert printed.err == ""


def test_a_topic_that_is_missing_is_noticed_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from magnetar.cli import run
    from magnetar.spark_session import session

    def starts(**_: object) -> None:
        raise MagnetarError("far enough")

    monkeypatch.setattr(session, "build", starts)
    a, b = FakeCluster("a").start(), FakeCluster("b").start()
    try:
        (tmp_path / "token").write_text(TOKEN)
        config = tmp_path / "clusters.toml"
        tables = "".join(
            f'[clusters.{one.name}]\npulsar = "{one.address}"\nhttp = "127.0.0.1:{port}"\n'
            for port, one in enumerate((a, b), 1)
        )
        config.write_text(f'{tables}[replication]\ntoken_file = "token"\n')
        a.create(T)
        assert run(["verify", T, "-c", str(config)]) == 1
        printed = capsys.readouterr()
        assert f"b: topic {T} not found" in printed.err
        assert "a: " not in printed.err
        assert "starting Spark" not in printed.err
        b.create(T)
        assert run(["verify", T, "-c", str(config)]) == 1
        assert "far enough" in capsys.readouterr().err, "it is in every cluster"
    finally:
        a.stop()
        b.stop()

"""Random worlds around the real link machines: once, in order, complete but for declared gaps, one name one message.

`MAGNETAR_SEEDS=100000 pytest tests/property/test_link_worlds.py` runs more of them. A failure prints its seed and story;
`python -c "from tests.support.linkbugs import run_world; print(run_world(SEED))"` replays it exactly.
"""

import os
import random
from typing import Any

import pytest

from magnetar.core.rates import Rate
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.source import LinkSource
from tests.support.linkbugs import BUGS, KNOWN, find, run_world

SEEDS = int(os.environ.get("MAGNETAR_SEEDS", "4000"))
CHUNKS = 8
SEARCH = 20_000
"""Seeds searched when a bug's known seed no longer finds it, because the real code or the world draws chance differently."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_rules_hold(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        why, trace = run_world(seed)
        if why:
            pytest.fail(f"seed {seed}: {why}\n" + "\n".join(trace))


def test_rules_hold_where_topics_go_at_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy `replicator-dispatch-rate`, which comes, changes and goes in the middle of everything."""
    added, commit, let_go = LinkSource.added, LinkSource.commit, LinkTopic.let_go
    chance, waited = random.Random(0), 0

    def paced(source: LinkSource, topic: str) -> None:
        now_ms = source.outbox.now_ms
        source.set_rate(topic, chance.choice((None, Rate(3, 0, 1_000, now_ms), Rate(0, 200, 1_000, now_ms))))

    def added_with_rate(source: LinkSource, topic: str, *arguments: Any, **more: Any) -> None:
        added(source, topic, *arguments, **more)
        paced(source, topic)

    def commit_with_change(source: LinkSource, *arguments: Any, **more: Any) -> None:
        commit(source, *arguments, **more)
        if chance.random() < 0.2:
            for topic in list(source.topics):
                paced(source, topic)

    def counted(state: LinkTopic, now_ms: int) -> int:
        nonlocal waited
        wait_ms = let_go(state, now_ms)
        waited += bool(wait_ms)
        return wait_ms

    monkeypatch.setattr(LinkSource, "added", added_with_rate)
    monkeypatch.setattr(LinkSource, "commit", commit_with_change)
    monkeypatch.setattr(LinkTopic, "let_go", counted)
    for seed in range(SEEDS // 10):
        chance.seed(seed)
        why, trace = run_world(seed)
        if why:
            pytest.fail(f"seed {seed}: {why}\n" + "\n".join(trace))
    assert waited > SEEDS // 100, "no topic had to wait for its rate"


def test_a_world_replays_exactly() -> None:
    for seed in range(40):
        assert run_world(seed) == run_world(seed)


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(bug: str) -> None:
    assert find(bug, [KNOWN[bug]]) or find(bug, range(SEARCH)), f"{bug}: a rule is missing and nothing notices"


@pytest.mark.parametrize("bug", BUGS)
def test_without_the_bug_the_same_seed_is_fine(bug: str) -> None:
    why, trace = run_world(KNOWN[bug])
    assert not why, "\n".join(trace)

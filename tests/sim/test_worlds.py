"""Worlds that once found something are fine, and a seed is a world. Many worlds of each mode are in files of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from magnetar.runtime.interpreter.compiled import Form
from magnetar_sim.actions import stories
from magnetar_sim.checkers.all import CHECKERS
from magnetar_sim.command import main
from magnetar_sim.options import WorldOptions
from magnetar_sim.planted.bugs import BUGS
from magnetar_sim.runner import run_world
from magnetar_sim.world import World

RECORDED = {
    ("exact", 4297): "a world that changed its mode was held to exact mode's promises",
    ("exact", 520_913): "a seek while no link concerned the topic, and a set begun behind it",
    ("exact", 521_553): "a failover's target that lost its disk between having the final state and being activated",
    ("exact", 43_057): "the simulator's own",
    ("exact", 46_861): "a state without a cursor, in a topic that was being deleted",
    ("exact", 47_107): "the simulator's own",
    ("exact", 815_132): "the simulator's own: a subscription was given up and made again in one event",
    ("exact", 52_786): "a promise that held again before a checker had looked",
    ("snapshot", 8992): "a subscription that was given up in a topic that was deleted",
    ("snapshot", 4504): "the same as in 1015533, brought before there was a machine of snapshot mode",
    (
        "snapshot",
        13,
    ): "a seek that was heard of by another cluster's update first was undone by what was acknowledged before",
    ("snapshot", 2515): "a seek forward, in the final state of a failover",
    ("snapshot", 1_011_073): "a source whose clock was behind: a former life's watermark passed for the final state's",
    (
        "snapshot",
        1_015_533,
    ): "what a failover brought to an empty cluster passed for a starting point, and was taken back",
    (
        "snapshot",
        7_101_922,
    ): "what was acknowledged before any link concerned the topic was never sent to a cluster that joined",
    ("mixed", 5_001_073): "a late answer of an earlier generation undid the rewind that was on its way to the store",
}
"""Seeds beyond those of `promises_hold` that once found something, and what."""


@pytest.mark.parametrize(("mode", "seed"), RECORDED)
def test_recorded_seeds_are_fine(mode: str, seed: int) -> None:
    assert not run_world(seed, mode, batches="short").why


@pytest.mark.parametrize("seed", [7_085, 16_269, 23_026, 34_927, 38_863, 700_243, 1_012_937, 1_015_747])
def test_recorded_seeds_of_longer_worlds_are_fine(seed: int) -> None:
    """What was forgotten while a policy named fewer clusters was refused when one came back that holds it still; a marker
    that was on its way to the log when the policy ceased to name its writer was passed over, on a one-way link;
    retention took what a seek on its way to the store had just come back for; an earlier failover's token with a later
    time passed for that of the present one. (23026: an operator deleted the topic right behind its activation; 34927: retention
    had begun before the link did; 38863: a cluster that informed one of two others and then lost its disk does not have the topic
    again; 700243: a mark of a former life was repeated to a cluster that had known that it is void, and was restarted.)
    """
    assert not run_world(seed, steps=96, batches="short").why


@pytest.mark.parametrize("seed", [4_795, 7_365, 8_903, 14_577, 17_457, 800_107, 810_007])
def test_recorded_seeds_of_longer_snapshot_worlds_are_fine(seed: int) -> None:
    """An expiry that a lost seek had taken back; a failed append that was reported late; a subscription that was made by an
    update behind a seek; updates that were passed over while a subscription was deleted, and read again after a restart; a torn
    tail that passed for damage, because the segment that was to seal it was torn, too; a consumer that had made the
    subscription came in front of the answer to another's seek; a state that was stored behind its topic's deletion.
    """
    assert not run_world(seed, "snapshot", steps=96, batches="short").why


@pytest.mark.parametrize("seed", [369, 627, 790, 1017])
def test_recorded_seeds_of_worlds_with_more_seeks_are_fine(seed: int) -> None:
    """A failover that brought a seek; a starting point that a failover's state put back, and that was claimed as acknowledged; a
    store that failed while retention was about to delete; what a failover had brought as acknowledged, and the merge of two
    starting points brought back.
    """
    assert not run_world(seed, "snapshot", steps=96, without="seek_forgets_nothing").why


def test_a_recorded_seed_of_both_kinds_of_batches_is_fine() -> None:
    """A cumulative acknowledgement passed messages that were being deleted when the subscription was made in front of them."""
    assert not run_world(116, "snapshot", batches="both").why


def acknowledged_at_the_last_moment(world: World) -> Iterator[int]:
    """The source of a failover dies when it is fenced, with acknowledgements on their way to the disk."""
    source, target = world.context.both[0]
    cluster, topic, name = world.clusters[source], world.context.topics[0], world.workload.subscriptions[0]
    consumer = stories._consumer(world, source)
    stories._publish(world, source, 6)
    yield from stories._until(stories._holds(world, target, 6))
    yield from stories._until(lambda: len(consumer.received) >= 6)
    operator = world.failovers.start(topic, name, source, target)
    while operator.moved is None and not operator.over:
        if cluster.broker is not None and cluster.broker.fences.fence(topic, name).held:
            consumer.ack(list(consumer.received))
        yield 1
    if operator.over:
        return
    cluster.die()
    world.context.count("died at the last moment")
    yield 100
    cluster.start()
    yield from stories._until(lambda: operator.over)
    yield 5_000


def test_what_a_source_had_not_stored_when_it_died_is_not_promised_by_its_failover() -> None:
    """Seed mixed 7200009, wide, before clocks changed: what was acknowledged last was held to come no more at the target."""
    options = WorldOptions(focus=(), shape="mesh", replicated_share=1.0)
    worlds = [World(seed, options=options, checkers=CHECKERS) for seed in range(8)]
    for world in worlds:
        world.run(1, story=acknowledged_at_the_last_moment)
    assert sum(world.context.happened["died at the last moment"] for world in worlds) >= 3


def test_a_world_replays_exactly() -> None:
    for seed in range(5):
        first, second = run_world(seed), run_world(seed)
        assert first == second


def test_a_world_is_the_same_in_another_process() -> None:
    """Order must not come from hashes, which every process salts in its own way."""
    script = (
        "from magnetar_sim.runner import run_world\n"
        "print([run_world(seed, mode).digest for seed in range(6) for mode in ('exact', 'snapshot')])"
    )
    printed = set()
    for salt in ("1", "2", "3"):
        environment = os.environ | {"PYTHONHASHSEED": salt}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        printed.add(done.stdout)
    assert len(printed) == 1, printed


def test_tracing_changes_nothing() -> None:
    trace: list[str] = []
    assert run_world(3, trace=trace) == run_world(3)
    assert any("is sent" in line for line in trace)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--trace"]) == 0
    assert "every promise held" in capsys.readouterr().out
    assert main(["--seeds", "4", "--cores", "1"]) == 0
    assert "4 worlds (exact)" in capsys.readouterr().out


def test_planted_bugs_need_pure_python(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("magnetar_sim.command.FORM", Form("", ["magnetar.storage.cursor"]))
    with pytest.raises(SystemExit):
        main(["--seed", "1", "--bug", next(iter(BUGS))])
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("which compiled modules do not notice: set MAGNETAR_COMPILE=no")
    )

"""A topic that a schema holds up: told with both sides, and tried again so soon that whoever mends it sees it go on."""

from magnetar.pipeline import messages as m
from magnetar.pipeline.link_state import ALL
from magnetar.pipeline.pipeline_state import BLOCKED_SCHEMA_MS_MAX
from magnetar.pipeline.planner import RANGE_BYTES_MIN
from magnetar.wire import pulsar_pb2 as pb

from .worlds import outcome, ranges, ready, state, told


def test_both_schemas_are_told_and_pauses_stay_short() -> None:
    side = pb.GeoSchemaSide(version=3, type="AVRO", digest="1f00ba12")
    conflict = pb.GeoSchemaConflict(source=side, target=pb.GeoSchemaSide(version=0), strategy="FULL", cause="why")
    of, now, pauses = ready(), 0, []
    for _ in range(12):
        (part,) = ranges(of, now=now)
        blocked = outcome(
            part, trouble=m.BLOCKED, kind="schema", reason="one line", at=(5, 3), conflict=conflict.SerializeToString()
        )
        told(of, ALL, blocked, now=now)
        owed = of.links[0].owed["t"]
        assert (owed.blocked, owed.reason, owed.position.entry, owed.conflict) == ("schema", "one line", 3, conflict)
        pauses.append(of.links[0].topics["t"].retry_at_ms - now)
        now = of.links[0].topics["t"].retry_at_ms
    assert max(pauses) <= BLOCKED_SCHEMA_MS_MAX * 1.25
    assert min(pauses) >= 500, "and yet it is not asked all the time"


def test_a_blocked_topic_is_probed_with_little() -> None:
    of = ready(states=(state(size=64 << 20),))
    (part,) = ranges(of)
    assert part.bytes_max > RANGE_BYTES_MIN
    told(of, ALL, outcome(part, trouble=m.BLOCKED, kind="schema", reason="one line"))
    (probe,) = ranges(of, now=10_000)
    assert probe.bytes_max == RANGE_BYTES_MIN
    told(of, ALL, outcome(probe, c=3, s=3), now=10_000)
    assert ranges(of, now=10_000)[0].bytes_max > RANGE_BYTES_MIN

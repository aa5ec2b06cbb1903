"""What a broker answers to `magnetar status`."""

from typing import Any

TOPIC = "persistent://public/default/t"


def link(**more: Any) -> dict[str, Any]:
    topic = {"topic": TOPIC, "orphan": False, "paused": False, "blocked": "", "lag_messages": 0}
    return {
        "source": "a", "target": "b", "state": "up", "since_ms": 1, "detail": "", "paused": False,
        "throttle_bytes_per_s": None, "throttled": False, "messages_sent": 1000, "bytes_sent": 2_000_000,
        "skipped_messages": 0, "gap_messages": 0, "lag_messages": 12, "lag_bytes": 3400, "lag_ms": 5600, "topics": [topic],
    } | more  # fmt: skip


def status(**more: Any) -> dict[str, Any]:
    broker = {"topics": 3, "producers": 1, "consumers": 2, "msgInCounter": 99, "state": ""}
    return {
        "cluster": "a", "uuid": "u", "version": "0", "started_ms": 1_000, "now_ms": 61_000, "broker": broker,
        "links": [link()], "blocked": [], "incoming": {}, "gaps": [], "deleted": [],
    } | more  # fmt: skip

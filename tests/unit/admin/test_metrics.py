"""Series of one scrape."""

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from magnetar.admin.metrics import Figures, Snapshot


def test_of_what_has_no_series_of_its_own_counts_are_summed_and_the_newest_time_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.admin.metrics.METRIC_SUBSCRIPTIONS_MAX", 1)
    told = [{"totalMsgExpired": 3, "lastExpireTimestamp": at_ms} for at_ms in (700, 900, 800)]
    topics = {"persistent://public/default/t": {"subscriptions": dict(zip("abc", told, strict=True))}}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures(Snapshot({}, topics, metadata={"groups": []}), "here", "1"))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    found = {
        (sample.name.removeprefix("pulsar_subscription_"), sample.labels["subscription"]): sample.value
        for family in families
        for sample in family.samples
        if family.type == "gauge" and sample.name.endswith(("expired", "expire_timestamp"))
    }
    assert found == {
        ("total_msg_expired", "a"): 3,
        ("total_msg_expired", "(other)"): 6,
        ("msg_rate_expired", "a"): 0,
        ("msg_rate_expired", "(other)"): 0,
        ("last_expire_timestamp", "a"): 700,
        ("last_expire_timestamp", "(other)"): 900,
    }

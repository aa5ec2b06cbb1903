"""The record of a broker in ZooKeeper: what is written is read, also by other versions, and nothing unusable is passed on."""

import json
from pathlib import Path

import pytest

from magnetar.broker.waiting.registration import (
    LISTENERS_MAX,
    ListenerAddresses,
    Registration,
    read_registration,
    registration_of,
)
from magnetar.core.config import load

FULL = Registration(
    broker="a",
    pulsar="pulsar://10.0.0.1:6650",
    pulsar_tls="pulsar+ssl://a.example:6651",
    web="http://10.0.0.1:8080",
    web_tls="https://a.example:8443",
    listeners={"outside": ListenerAddresses(pulsar="pulsar://b.example:1", pulsar_tls="pulsar+ssl://b.example:2")},
)


def test_what_is_written_is_read() -> None:
    assert read_registration(FULL.encode()) == FULL
    assert read_registration(Registration(broker="b").encode()) == Registration(broker="b")


def test_the_format_is_the_documented_one() -> None:
    assert json.loads(FULL.encode()) == {
        "version": 1,
        "broker": "a",
        "pulsar": "pulsar://10.0.0.1:6650",
        "pulsarTls": "pulsar+ssl://a.example:6651",
        "web": "http://10.0.0.1:8080",
        "webTls": "https://a.example:8443",
        "listeners": {"outside": {"pulsar": "pulsar://b.example:1", "pulsarTls": "pulsar+ssl://b.example:2"}},
    }


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    later = json.loads(FULL.encode()) | {"version": 2, "load": {"cpu": 1}, "zone": "x"}
    assert read_registration(json.dumps(later).encode()) == FULL


def test_the_bare_name_of_the_first_version_is_read() -> None:
    assert read_registration(b"a") == Registration(broker="a")


@pytest.mark.parametrize(
    ("data", "broker"),
    [
        (b"", "?"),
        (b"\xff\x00", "?"),
        (b"[]", "[]"),
        (b"7", "7"),
        (b"{}", "?"),
        (b'{"broker": 7}', "?"),
        (b'{"broker": "a\\nb"}', "?"),
        (b'{"broker": "' + b"x" * 1000 + b'"}', "x" * 200),
    ],
)
def test_nonsense_is_a_broker_without_addresses(data: bytes, broker: str) -> None:
    assert read_registration(data) == Registration(broker=broker)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "pulsar://",
        "http://host:1",
        "pulsar://host:1\r\nX: y",
        "pulsar://host:1/path",
        "pulsar://user@host:1",
        "pulsar://h\u00f6st:1",
        "pulsar://" + "x" * 600,
        None,
        7,
        {},
    ],
)
def test_an_address_that_no_client_may_be_sent_to_is_none(url: object) -> None:
    data = json.dumps({"broker": "a", "pulsar": url, "listeners": {"x": {"pulsar": url}, "y": url}}).encode()
    found = read_registration(data)
    assert found.pulsar == ""
    assert found.listeners["x"] == ListenerAddresses()


def test_listeners_have_a_limit() -> None:
    data = json.dumps({"broker": "a", "listeners": {str(number): {} for number in range(1000)}}).encode()
    assert len(read_registration(data).listeners) == LISTENERS_MAX


def test_urls_of_a_listener() -> None:
    assert FULL.urls("") == (FULL.pulsar, FULL.pulsar_tls)
    assert FULL.urls("outside") == ("pulsar://b.example:1", "pulsar+ssl://b.example:2")
    assert FULL.urls("inside") is None


def test_a_broker_registers_what_its_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text(
        '[clusters.one.brokers.x]\npulsar = "0.0.0.0:6650"\nhttp = "0.0.0.0:8080"\nadvertised = "a.example:6650"\n'
        '[clusters.one.brokers.x.advertised_listeners]\noutside = "b.example:1"\n'
    )
    assert registration_of(load(tmp_path / "clusters.toml").cluster("one").broker("x")) == Registration(
        broker="x",
        pulsar="pulsar://a.example:6650",
        web="http://a.example:8080",
        listeners={"outside": ListenerAddresses(pulsar="pulsar://b.example:1")},
    )

"""A broker's metrics: the page, and the value of one series."""

import urllib.request

from tests.support.brokers import BrokerProcess


def metric(text: str, name: str, *labels: str) -> float:
    """The value of one series."""
    lines = [
        line
        for line in text.splitlines()
        if line.startswith(f"{name}{{") and all(f'"{label}"' in line for label in labels)
    ]
    assert len(lines) == 1, (name, labels, lines)
    return float(lines[0].rsplit(" ", 1)[1])


def scrape(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"{broker.web}/metrics", timeout=20) as answer:
        return str(answer.read().decode())

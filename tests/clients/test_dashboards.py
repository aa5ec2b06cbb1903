"""Dashboards made for Pulsar find what they ask for: every metric, with its labels, and with data while there is traffic."""

from pathlib import Path

from tests.clients.official.dashboards import ADDED, NO_DATA, WANTED
from tests.clients.official.traffic import watched


def test_every_metric_of_the_dashboards_has_its_labels_and_data(tmp_path: Path) -> None:
    labels = {name: set(named) | {"cluster"} for named, names in WANTED.items() for name in names}
    seen = watched(tmp_path, labels.keys() - NO_DATA.keys())
    assert labels.keys() - seen.keys() == set()
    lacking = {name: named - seen[name].labels - ADDED for name, named in labels.items()}
    assert {name: found for name, found in lacking.items() if found} == {}
    assert {name for name in labels if seen[name].most <= 0} - NO_DATA.keys() == set()

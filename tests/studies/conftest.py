"""Fixtures for the tests of all experiments."""

import dataclasses

import pytest

from calibrant.methods import METHODS, SelfCalibrated, Standard
from studies.tables import peers, study
from tests.eager import eager_training  # noqa: F401 (a fixture)
from tests.studies.cases import write_table


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_table(data / "one.csv")
    write_table(data / "two.csv", rows=150, classes=3, seed=1)
    return data


@pytest.fixture
def short(monkeypatch):
    """The real methods, for a few steps."""
    own = {
        "standard": Standard(hidden=(4,), epochs=5),
        "temperature": dataclasses.replace(METHODS["temperature"].method, base=Standard(hidden=(4,), epochs=5)),
        "ensemble": dataclasses.replace(METHODS["ensemble"].method, base=Standard(hidden=(4,), epochs=5), members=2),
        "self-calibrated": SelfCalibrated(hidden=(4,), epochs=5, folds=2, members=("network", "trees", "linear")),
        "self-calibrated-network": SelfCalibrated(hidden=(4,), epochs=5, folds=2),
    }
    monkeypatch.setattr(study, "table_methods", lambda: own)
    monkeypatch.setitem(peers.SETTINGS, "hidden_layer_sizes", (4,))
    monkeypatch.setitem(peers.SETTINGS, "max_iter", 5)
    monkeypatch.setitem(peers.BOOSTING, "max_iter", 5)
    others = {name: "it is slow" for name in peers.PEERS if peers.base_of(name)[0].package != "sklearn"}
    monkeypatch.setattr(study, "missing_peers", lambda: others)
    return own

"""Tests on published predictions if they are present, of the benchmark's records, and of imports."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from posthoc_cases import NAMES, log_loss

from calibrant.posthoc import CALIBRATORS, make_calibrator

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(os.environ.get("CALIBRANT_DATA", ROOT.parent / "shared" / "data")) / "golden"


@pytest.fixture(scope="module")
def vgg():
    path = GOLDEN / "vgg_cifar10_probs.npz"
    if not path.is_file():
        pytest.skip("the golden predictions are not here; set CALIBRANT_DATA to their folder")
    with np.load(path) as data:
        return data["probs"], data["labels"].astype(int)


@pytest.mark.parametrize("name", NAMES)
def test_every_calibrator_helps_a_real_network(name, vgg):
    probs, labels = vgg
    calibrator = make_calibrator(name, from_probs=True).fit(probs[:3000], labels[:3000])
    calibrated = calibrator.predict_proba(probs[3000:])
    assert log_loss(calibrated, labels[3000:]) < log_loss(probs[3000:].astype(float), labels[3000:])
    kept = calibrator.predict(probs[3000:]) == probs[3000:].argmax(axis=1)
    assert kept.all() or CALIBRATORS[name].can_change_prediction
    assert kept.mean() > 0.96


def test_the_benchmark_gives_records_with_a_verdict(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    posthoc = pytest.importorskip("studies.benchmarks.posthoc")
    monkeypatch.setattr(posthoc, "SEEDS", (0, 1))
    (record,) = posthoc.run("synthetic-beta/platt")
    assert {"name", "value", "target", "holds", "ours", "peers", "interval"} <= set(record)
    assert record["holds"] == (record["value"] <= record["target"])
    monkeypatch.setattr(posthoc, "installed", lambda peer: peer.startswith("sklearn"))
    (record,) = posthoc.run("synthetic-beta/beta")
    assert record["holds"] is None
    assert "no peer: netcal BetaCalibration" in record["note"]

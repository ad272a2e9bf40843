"""Tests of `python -m studies ablate tables` on small tables."""

import json

import numpy as np
import pytest

from calibrant.methods import SelfCalibrated
from studies.common.keys import make_key
from studies.tables import ablation
from studies.tables.data import prepare


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2))
    lines = [f"{a:.3f},{b:.3f},{'yes' if a + 0.3 * rng.normal() > 0 else 'no'}" for a, b in x]
    (tmp_path / "small.csv").write_text("\n".join(["a,b,target", *lines]) + "\n")
    return tmp_path


def test_no_test_row_is_trained_or_scored_on(folder):
    path = folder / "small.csv"
    key = make_key(settings="", code="", data="", table="small", method="plain", seed=100)
    own, whole = ablation.development_split({"small": path}, 50, key), prepare("small", path, 100)
    assert own.task.val is None
    np.testing.assert_array_equal(own.task.train.inputs, whole.task.train.inputs[:50])
    np.testing.assert_array_equal(own.inputs, whole.task.val.inputs)
    np.testing.assert_array_equal(own.labels, whole.task.val.labels)


def test_variants_are_trained_once_and_shown_beside_the_plain_networks(folder, monkeypatch, capsys):
    brief = {"hidden": (2,), "epochs": 2, "folds": 2}
    small = {"plain": SelfCalibrated(embedding=None, **brief), "piecewise": SelfCalibrated(**brief)}
    monkeypatch.setattr(ablation, "variants", lambda: small)
    settings = {"data": folder, "seeds": 1, "only": ["small"], "out": folder / "out", "device": "cpu"}
    ablation.STUDY.run(**settings)
    printed = capsys.readouterr().out
    records = json.loads((folder / "out" / "results.json").read_text())["records"]
    assert {r["method"] for r in records} == {"plain", "piecewise", "trees"}
    assert {r["seed"] for r in records} == {100}
    by_name = {r["method"]: r["nll"] for r in records}
    rows = {line.split("|")[1].strip(): line.split("|")[2:5] for line in printed.splitlines() if line.startswith("|")}
    rows = {name: cells for name, cells in rows.items() if name in by_name}
    assert len(rows) == 3
    for name, (nll, ratio, _) in rows.items():
        assert float(nll.strip(" *")) == pytest.approx(by_name[name], abs=1e-4)
        assert float(ratio) == pytest.approx(by_name[name] / by_name["plain"], abs=1e-3)
    monkeypatch.setattr(ablation, "Training", None)  # nothing is left to train
    monkeypatch.setattr(ablation, "fit_trees", None)
    page = ablation.STUDY.run(**settings)
    again = ablation.STUDY.run(source=folder / "out" / "results.json", out=folder / "again")
    assert again.read_text() == page.read_text()


def test_unknown_variants_are_an_error(folder):
    with pytest.raises(ValueError, match="methods must name variants among"):
        ablation.STUDY.run(data=folder, methods=["other"], out=folder / "out")

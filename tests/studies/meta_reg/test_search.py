"""The search over settings of the paper's method: its settings and its criterion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.meta_reg.groups import groups
from studies.meta_reg.plan import known_methods, settings_text
from studies.meta_reg.search import STUDY, settings
from studies.meta_reg.searched import best, describe
from tests.studies.cases import invoke
from tests.studies.meta_reg.test_claims import record


def test_every_setting_differs_from_its_default_in_one_value() -> None:
    found = settings([0.01], [0.1], [10.0], [40.0])
    assert list(found) == [
        "flg-sece",
        "flg-sece-published",
        "flg-sece-h-0.01",
        "flg-sece-strength-40",
        "flg-sece-published-tau-0.1",
        "flg-sece-rate-10",
    ]
    base, published = found["flg-sece"], found["flg-sece-published"]
    assert dict(found["flg-sece-h-0.01"].outer_settings) == dict(base.outer_settings) | {"bandwidth": 0.01}
    assert dict(found["flg-sece-strength-40"].outer_settings) == dict(base.outer_settings) | {"strength": 40.0}
    assert found["flg-sece-rate-10"].outer_learning_rate == 10 * base.outer_learning_rate
    assert found["flg-sece-published-tau-0.1"].temperature == 0.1
    assert published.temperature == 0.01
    assert len({settings_text(method) for method in found.values()}) == len(found)
    for name in set(found) & set(known_methods()):  # where the ablation has the same variant, it is the same method
        assert known_methods()[name] == found[name]
    assert list(settings([0.02], [0.01], [1.0], [10.0])) == ["flg-sece", "flg-sece-published"]
    with pytest.raises(ValueError, match="--tau must be positive; got -1"):
        settings(temperatures=[-1.0])


def test_best_setting_has_the_lowest_validation_loss() -> None:
    values = {"flg-sece": (0.3, 0.1), "flg-sece-h-0.05": (0.2, 0.9), "flg-sece-rate-10": (0.4, 0.0)}
    (group,) = groups(record(name, 0, nll_val=val, nll=test) for name, (val, test) in values.items())
    assert best(group, "flg-sece") == "h 0.05"
    assert describe("flg-sece-published-tau-0.1", "flg-sece-published") == "τ 0.1"
    assert describe("flg-sece-strength-40", "flg-sece") == "strength of SECE 40"
    assert describe("flg-sece", "flg-sece") == "default"


def test_a_search_on_digits_writes_results_and_a_report(tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept.json"
    options = ["--quick", "--epochs", "1", "--limit", "300", "--device", "cpu"]
    values = ["--bandwidth", "0.02", "--tau", "0.1", "--outer-learning-rate", "1", "--strength", "10"]
    command = ["sweep", "meta-reg", *options, *values, "--out", str(out), "--export", str(kept)]
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    found = json.loads(kept.read_text())["records"]
    assert {r["method"] for r in found} == {"flg-sece", "flg-sece-published", "flg-sece-published-tau-0.1"}
    page = (out / "report.html").read_text()
    assert "τ 0.1" in page
    again = STUDY.run(source=[kept], out=tmp_path / "again")
    assert "τ 0.1" in again.read_text()

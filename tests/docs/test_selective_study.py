"""Tests that docs/selective.md shows the stored study, and that examples/rejection.py runs."""

import inspect
import runpy
from pathlib import Path

import pytest

from calibrant import SelfCalibratedClassifier
from calibrant.metrics import excludes_zero
from calibrant.report import read_results
from studies.guarantees.page import FINALS, GuaranteeCase, bound_row, cases_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def brief(monkeypatch):
    """Train the classifier for a few steps: what is tested is the code around it."""
    defaults = inspect.unwrap(SelfCalibratedClassifier.__init__).__kwdefaults__
    for name, value in (("epochs", 30), ("folds", 3), ("members", ("network",))):
        monkeypatch.setitem(defaults, name, value)


def test_the_example_runs(brief, capsys):
    runpy.run_path(str(ROOT / "examples/rejection.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "chosen for risk 0.02" in printed or "No window was found" in printed
    assert "aps: " in printed


@pytest.fixture(scope="module")
def stored():
    return read_results(ROOT / "results" / "guarantees.json")


def test_the_words_are_true_of_the_stored_study(stored):
    cases = {(case.learner, case.final): case for case in cases_of(stored.records)}
    for (learner, final), case in cases.items():
        if final == "split":
            others = [cases[learner, other] for other in FINALS if other != "split"]
            for own in others:
                assert accepted(own) > accepted(case)
                assert found(own) > found(case)
        if (learner, final) == ("tree", "mean"):
            assert all(excludes_zero(gap) == -1 for gap in gaps(case))
            lowest = min(gap.value for key, own in cases.items() if "split" not in key for gap in gaps(own))
            assert lowest in [gap.value for gap in gaps(case)]


def test_bounds_of_trees_on_all_rows_are_tight(stored):
    case = next(c for c in cases_of(stored.records) if (c.learner, c.final) == ("tree", "refit"))
    assert all(0.1 < share.value < 0.15 for share in (bound_row(case)[4], bound_row(case)[7]))
    assert "somewhat more than 10 % are exceeded" in " ".join((ROOT / "docs/selective.md").read_text().split())


def gaps(case: GuaranteeCase):
    return [cell for cell in (bound_row(case)[5], bound_row(case)[8]) if cell is not None]


def accepted(case: GuaranteeCase):
    values = case.values("ranks 0.1", "accepted")
    return sum(values) / len(values)


def found(case: GuaranteeCase):
    return sum(case.values("ranks 0.1", "found")) / len(case.records)

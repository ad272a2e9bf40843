"""Tests that docs/selective.md shows the stored study, and that examples/rejection.py runs."""

import inspect
import runpy
from pathlib import Path

import pytest

from calibrant import SelfCalibratedClassifier
from calibrant.metrics import excludes_zero, mean_interval
from studies import guarantees
from studies.report import read_results

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
def rules():
    return guarantees.frame(read_results(ROOT / "results" / "guarantees.json").records, "rules")


def test_out_of_fold_rows_give_more_rules_that_accept_more(rules):
    means = rules[rules["name"] == "ranks 0.1"].groupby(["learner", "final"])[["found", "accepted"]].mean().unstack()
    for what in ("found", "accepted"):
        fast = means[what].dropna()
        assert (fast["split"] < fast[["mean", "refit"]].min(axis=1)).all()


def test_fold_models_differ_most_from_their_mean_for_trees(rules):
    fixed = rules[rules["name"].str.startswith("fixed ") & (rules["learner"] != guarantees.NETWORK)]
    table = fixed.pivot_table("risk", ["learner", "name", "dataset", "seed"], "final", aggfunc="first").astype(float)
    gaps = (table["mean"] - table["folds"]).dropna().groupby(["learner", "name"]).agg(list).map(mean_interval)
    assert all(excludes_zero(gap) == -1 for gap in gaps["tree"])
    assert min(gaps, key=lambda gap: gap.value) in list(gaps["tree"])


def test_bounds_of_trees_on_all_rows_are_tight(rules):
    trees = rules[(rules["learner"] == "tree") & (rules["final"] == "refit") & rules["name"].str.startswith("fixed ")]
    assert trees.groupby("name")["broken"].mean().between(0.1, 0.15).all()
    assert "somewhat more than 10 % are exceeded" in " ".join((ROOT / "docs/selective.md").read_text().split())

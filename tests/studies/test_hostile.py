"""Tests of the experiment on hostile data: cases, verdicts on known records, and a tiny run with an earlier version."""

import numpy as np
import pytest
from scipy import sparse

from calibrant import SelfCalibratedClassifier
from calibrant.estimators.folds import dealt_splits
from calibrant.methods import blend
from studies.hostile import (
    CONTENDERS,
    COSTS,
    SCORES,
    Alone,
    Frequencies,
    best_member,
    results_section,
    verdicts,
)
from studies.hostile_cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_every_case_draws_what_a_classifier_takes(name):
    data, again, other = (CASES[name].make(seed) for seed in (0, 0, 1))
    classes = np.unique(data.y)
    assert np.array_equal(classes, np.arange(len(classes)))
    assert set(data.y_test) <= set(classes)
    assert len(classes) > 1
    assert data.X.shape[0] == len(data.y)
    assert data.X_test.shape == (len(data.y_test), data.X.shape[1])
    assert len(data.y_test) >= 2000
    rows = [d.X.toarray() if sparse.issparse(d.X) else d.X for d in (data, again, other)]
    assert np.array_equal(rows[0], rows[1], equal_nan=True)
    assert not np.array_equal(rows[0], rows[2], equal_nan=True)
    assert np.isnan(rows[0]).any() == (name == "missing")


def test_cases_are_what_their_names_say():
    assert len(np.unique(CASES["copies"].make(0).X, axis=0)) == 100
    near = CASES["near copies, groups"].make(0)
    assert len(np.unique(near.X, axis=0)) == len(near.groups) == 600
    assert np.bincount(CASES["oversampled"].make(0).y).tolist() == [360, 360]
    assert np.bincount(CASES["one lonely row"].make(0).y)[3] == 1
    assert CASES["1 in 1,000"].make(0).y.mean() == pytest.approx(0.001)
    assert CASES["outliers"].make(0).X.max() == 1e12


TIMES = {"seconds": 30.0, "processor_seconds": 20.0}


def records(**nll):
    """Four seeds of two cases; ``nll`` gives the means."""
    means = {"self-calibrated": 0.5, "class-frequencies": 0.6, "network": 0.55, "trees": 0.52, "mlp": 0.5} | nll
    return [
        {"dataset": case, "method": m, "seed": s, "nll": v + 0.01 * s, "failure": None} | TIMES
        for case in ("a", "b")
        for m, v in means.items()
        for s in range(4)
    ]


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, []),
        ({"class-frequencies": 0.4}, [0]),
        ({"trees": 0.4}, [1]),
        ({"self-calibrated": 0.7}, [0, 1]),
    ],
)
def test_targets_are_judged(change, missed):
    judged = verdicts(records(**change))
    assert [k for k, verdict in enumerate(judged) if verdict.holds is False] == missed
    assert best_member(records(**change), "a") == "trees"
    assert best_member([], "a") is None


def test_a_failure_is_a_miss_and_slowness_as_well():
    rows = [
        r | {"nll": None, "failure": "refused"} if (r["method"], r["dataset"]) == ("self-calibrated", "b") else r
        for r in records()
    ]
    assert [v.holds for v in verdicts(rows)[:2]] == [False, False]
    slow = [r | {"processor_seconds": 200.0 if r["method"] == "self-calibrated" else 1.0} for r in records()]
    assert verdicts(slow)[2].holds is False


@pytest.mark.parametrize("kind", ["trees", "linear"])
def test_a_member_alone(kind):
    losses = []
    for seed in range(4):
        data = CASES["grouped"].make(seed + 1)
        probs = Alone(kind).fit(data.X, data.y, data.groups).predict_proba(data.X_test)
        losses.append(-np.log(probs[np.arange(len(probs)), data.y_test]).mean())
    assert np.mean(losses) < 0.72  # new patients: hardly better than chance, and not overconfident


def test_class_frequencies():
    probs = Frequencies().fit(np.zeros((4, 1)), np.array([0, 0, 0, 1])).predict_proba(np.zeros((2, 1)))
    assert probs == pytest.approx(np.array([[0.7, 0.3]] * 2))


def test_the_results_section_keeps_the_earlier_version_apart():
    full = [dict.fromkeys((*SCORES, *COSTS), 0.1) | dict(r, dataset="copies") for r in records(before=1.5)[: 4 * 6]]
    text = results_section(full)
    assert "the same 100 rows, ten times each" in text
    assert "the earlier version with 4 seeds of 1 case" in text
    scores, costs = (line for line in text.splitlines() if line.startswith("| copies"))
    assert "1.5150" not in scores
    assert "1.5150" in costs  # the earlier version's mean of four seeds


def test_members_alone_use_the_folds_of_the_classifier(monkeypatch):
    """A pool that keeps only one member then predicts the same as this member alone."""
    data, dealt = CASES["rows once"].make(0), {}

    def spy(kind, rows, folds, seed, promising=None):
        dealt[type(kind).__name__] = folds, seed

    monkeypatch.setattr(blend, "cross_fit", spy)
    SelfCalibratedClassifier(epochs=1, repeats=1, embedding=None, random_state=3, device="cpu").fit(data.X, data.y)
    for name, kind in (("trees", "Trees"), ("linear", "Linear")):
        alone = CONTENDERS[name](3)
        folds, _ = dealt_splits(data.X, data.y, 5, seed=alone.seed)
        used, seed = dealt[kind]
        assert seed == alone.seed
        for pair, other in zip(folds, used, strict=True):
            assert all(map(np.array_equal, pair, other))

"""Tests of the experiment on hostile data: cases, verdicts on known records, and a tiny run with an earlier version."""

import numpy as np
import pytest
from scipy import sparse

from calibrant import SelfCalibratedClassifier
from calibrant.estimators.folds import dealt_splits
from calibrant.methods import blend
from calibrant.report import Results, read_results
from calibrant.report.results import write_results
from studies.hostile import docs, study
from studies.hostile.cases import CASES, Data
from studies.hostile.contenders import Alone, Frequencies, estimators, fitted
from studies.hostile.page import best_member, verdicts


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
    if sparse.issparse(data.X):
        data, again, other = (Data(d.X.toarray(), d.y, None, d.y_test) for d in (data, again, other))
    assert np.array_equal(data.X, again.X, equal_nan=True)
    assert not np.array_equal(data.X, other.X, equal_nan=True)
    assert np.isnan(data.X).any() == (name == "missing")


def test_cases_are_what_their_names_say():
    assert len(np.unique(CASES["copies"].make(0).X, axis=0)) == 100
    near = CASES["near copies, groups"].make(0)
    assert len(np.unique(near.X, axis=0)) == len(near.groups) == 600
    assert np.bincount(CASES["oversampled"].make(0).y).tolist() == [360, 360]
    assert np.bincount(CASES["one lonely row"].make(0).y)[3] == 1
    assert CASES["1 in 1,000"].make(0).y.mean() == pytest.approx(0.001)
    assert CASES["200 x 5,000"].make(0).X.shape == (200, 5000)
    assert CASES["outliers"].make(0).X.max() == 1e12


COSTS = {"seconds": 30.0, "processor_seconds": 20.0}


def records(**nll):
    """Four seeds of two cases; ``nll`` gives the means."""
    means = {"self-calibrated": 0.5, "class-frequencies": 0.6, "network": 0.55, "trees": 0.52, "mlp": 0.5} | nll
    return [
        {"dataset": case, "method": m, "seed": s, "nll": v + 0.01 * s, "failure": None} | COSTS
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
    found = verdicts(records(**change))
    assert [k for k, verdict in enumerate(found) if verdict.holds is False] == missed


def test_noise_within_the_interval_is_no_miss():
    rows = records()
    for r in rows:
        if r["method"] == "trees":
            r["nll"] = 0.49 + 0.2 * (r["seed"] % 2)  # better by less than its interval
    assert verdicts(rows)[1].holds


def test_a_failure_is_a_miss_and_slowness_as_well():
    rows = records()
    for r in rows:
        if r["method"] == "self-calibrated" and r["dataset"] == "b":
            r |= {"nll": None, "failure": "refused"}
    assert [v.holds for v in verdicts(rows)[:2]] == [False, False]
    slow = records()
    for r in slow:
        r["processor_seconds"] = 200.0 if r["method"] == "self-calibrated" else 1.0
    assert verdicts(slow)[2].holds is False


def test_the_best_member_is_the_one_of_lowest_mean():
    assert best_member(records(), "a") == "trees"
    assert best_member(records(network=0.1), "a") == "network"
    assert best_member([], "a") is None


EARLIER = """
import numpy as np
class SelfCalibratedClassifier:
    def __init__(self, *given, **settings): pass
    def fit(self, X, y):
        if len(X) == 2: raise ValueError("two rows are too few")
        self.count = len(np.unique(y))
        return self
    def predict_proba(self, X): return np.full((len(X), self.count), 1 / self.count)
"""


def test_a_run_with_an_earlier_version(tmp_path, monkeypatch):
    package = tmp_path / "src" / "calibrant"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(EARLIER)
    given = {
        "only": ["ten rows", "two rows"],
        "methods": ["before", "class-frequencies", "linear", "logistic-regression"],
    }
    page = study.run(seeds=2, before=tmp_path / "src", out=tmp_path / "out", **given)
    results = read_results(tmp_path / "out" / "results.json")
    assert len(results.records) == 16
    found = {(r["dataset"], r["method"], r["seed"]): r for r in results.records}
    assert found["ten rows", "before", 0]["nll"] == pytest.approx(np.log(2), rel=1e-5)
    assert "two rows are too few" in found["two rows", "before", 1]["failure"]
    assert found["ten rows", "linear", 0]["peak_memory"] is not None
    assert list(results.config["cases"]) == ["two rows", "ten rows"]
    monkeypatch.setattr(study, "measure", None)  # all of it is stored, also without the earlier version
    rest = [m for m in given["methods"] if m != "before"]
    study.run(seeds=2, out=tmp_path / "out", only=given["only"], methods=rest)
    assert len(read_results(tmp_path / "out" / "results.json").records) == 16
    again = study.run(source=tmp_path / "out" / "results.json", out=tmp_path / "again")
    assert "before" in again.read_text()
    assert page.exists()


def test_unknown_names_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="only must name cases among"):
        study.run(only=["three rows"], out=tmp_path)
    with pytest.raises(ValueError, match="before must name the folder"):
        study.run(methods=["before"], out=tmp_path)
    with pytest.raises(ValueError, match="holds a package calibrant"):
        study.run(before=tmp_path, out=tmp_path, only=["ten rows"])


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
    assert isinstance(fitted("class-frequencies", CASES["ten rows"].make(0), 0), Frequencies)


def test_the_results_section_is_written_from_a_file(tmp_path):
    page, file = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text(f"Head\n{docs.BEGIN}\nformer text\n{docs.END}\nFoot\n")
    every = [dict(r, dataset="copies") for r in records(before=1.5) if r["dataset"] == "a"]
    full = [dict.fromkeys((*study.SCORES, "peak_memory"), 0.1) | r for r in every]
    config = {"experiment": "hostile", **study.extend({}, full)}
    write_results(file, config, full)
    docs.main([str(page), str(file)])
    text = page.read_text()
    assert text.startswith("Head\n")
    assert text.endswith("Foot\n")
    assert "former text" not in text
    assert "the same 100 rows, ten times each" in text
    assert "the earlier version with 4 seeds of 1 case" in text
    scores, costs = (line for line in text.splitlines() if line.startswith("| copies"))
    assert "1.5150" not in scores
    assert "1.5150" in costs  # the earlier version's mean of four seeds
    fewer = Results({}, {}, [*full, dict(full[0], dataset="grouped")])
    assert docs.runs_of(fewer, "self-calibrated") == "1 to 4 seeds of 2 cases"
    assert docs.runs_of(fewer, "linear") == "none"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="has no results section"):
        docs.main([str(page), str(file)])


def test_members_alone_use_the_folds_of_the_classifier(monkeypatch):
    """A pool that keeps only one member then predicts the same as this member alone."""
    data, dealt = CASES["rows once"].make(0), {}

    def spy(kind, rows, folds, seed, promising=None):
        dealt[type(kind).__name__] = folds, seed

    monkeypatch.setattr(blend, "cross_fit", spy)
    SelfCalibratedClassifier(epochs=1, repeats=1, embedding=None, random_state=3, device="cpu").fit(data.X, data.y)
    for name, kind in (("trees", "Trees"), ("linear", "Linear")):
        alone = estimators(3)[name]()
        folds, _ = dealt_splits(data.X, data.y, 5, seed=alone.seed)
        used, seed = dealt[kind]
        assert seed == alone.seed
        for pair, other in zip(folds, used, strict=True):
            assert all(map(np.array_equal, pair, other))

"""The study of guarantees: exact risks by hand, verdicts on simulated records, and a small run."""

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.base import clone

from calibrant.report import Results, read_results
from calibrant.selective import RejectionRule, Window
from studies.guarantees import measures, page, study
from studies.guarantees.learners import LEARNERS, FoldMean
from studies.guarantees.measures import FIXED, SCORES, TESTS, World, fixed_rules, kept, rule_name

WORLD = World(np.zeros((4, 1)), np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.5]]))
PROBS = np.array([[0.95, 0.05], [0.7, 0.3], [0.4, 0.6], [0.45, 0.55]])


def rule(threshold):
    window = None if threshold is None else Window.below(threshold)
    return RejectionRule(window, "risk", 0.1, "by hand", 4, 1.0, 0.0, 0.9, 0.1)


def test_risk_and_coverage_by_hand():
    found = kept(rule(0.6), [WORLD.outcome(PROBS)])
    assert found == {"found": True, "bound": 0.1, "risk": pytest.approx((0.1 + 0.4 + 0.2) / 3), "accepted": 0.75}
    assert kept(rule(0.99), [WORLD.outcome(PROBS)]) == {"found": True, "bound": 0.1, "risk": None, "accepted": 0.0}
    sets = np.array([[1, 0], [1, 1], [0, 1], [0, 0]], bool)
    assert WORLD.coverage(sets) == pytest.approx((0.9 + 1 + 0.8 + 0) / 4)


def test_pooled_risk_weighs_fold_models_by_accepted_rows():
    sure = np.array([[0.9, 0.1], [0.6, 0.4], [0.1, 0.9], [0.6, 0.4]])
    found = kept(rule(0.8), [WORLD.outcome(PROBS), WORLD.outcome(sure)])  # accept row 0, and rows 0 and 2
    assert found["risk"] == pytest.approx((0.1 + 0.1 + 0.2) / 3)
    assert found["accepted"] == 3 / 8
    assert kept(rule(None), [WORLD.outcome(PROBS)]) == {"found": False, "bound": 0.1, "risk": None, "accepted": 0.0}


def test_the_bound_at_a_fixed_threshold_is_the_binomial_one():
    probs = np.array([[0.95, 0.05]] * 20 + [[0.75, 0.25]] * 10)
    labels = np.array([0] * 18 + [1] * 2 + [0] * 10)
    found = fixed_rules(probs, labels)
    for name, n in (("fixed 0.7", 30), ("fixed 0.9", 20)):
        assert binom.cdf(2, n, found[name].risk_bound) == pytest.approx(0.1)
    assert fixed_rules(probs[:2], np.ones(2, int))["fixed 0.9"].risk_bound == 1.0


def record(dataset, seed, risk, coverage):
    names = [*(rule_name(test, 0.1) for test in TESTS), *(rule_name("fixed", t) for t in FIXED)]
    rules = {name: {"found": True, "bound": 0.1, "risk": risk, "accepted": 0.5} for name in names}
    sets = {name: {"coverage": coverage + 0.001 * (seed % 2), "size": 1.2} for name in SCORES}
    return {
        "dataset": dataset,
        "learner": "tree",
        "seed": seed,
        "mean": {"rules": rules, "sets": sets},
        "folds": {"rules": rules},
    }


def results(broken, coverage):
    """Sixty data sets of two kinds; ``broken`` rules of the second kind are broken."""
    records = [record("a", s, 0.05, 0.95) for s in range(30)]
    records += [record("b", s, 0.2 if s < broken else 0.05, coverage) for s in range(30)]
    config = {"rows": 10, "new_rows": 4, "risks": [0.1], "confidence": 0.9, "coverage": 0.9, "sets": ["a", "b"]}
    return Results(config, {}, records)


@pytest.mark.parametrize(
    ("broken", "coverage", "holds"),
    [(3, 0.9, [True] * 3), (12, 0.9, [False, False, True]), (0, 0.8, [True, True, False])],
)
def test_verdicts(broken, coverage, holds):
    """One kind of data cannot hide behind another."""
    found = results(broken, coverage)
    cases = list(page.cases_of(found.records))
    verdicts = [*page.rule_verdicts(cases, [0.1], 0.1), *page.set_verdicts(cases, 0.9)]
    assert [v.holds for v in verdicts] == holds
    text = page.tell(found).to_markdown()
    assert (f"b: {broken / 30:.3f}" in text) == (broken > 0)
    assert cases[0].broken(rule_name("ranks", 0.1)).value == broken / 60


def test_an_unfinished_study_has_a_report():
    found = results(0, 0.9)
    some = [r for r in found.records if r["dataset"] == "a"] + [{**record("b", 0, None, 0.9), "learner": "logistic"}]
    assert "logistic" in page.tell(found._replace(records=some)).to_markdown()


def test_fold_models_never_saw_the_row():
    """A tree that memorises: out of fold it is right no more often than by chance."""
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(300, 2)), generator.integers(0, 2, 300)
    tree = clone(LEARNERS["tree"]).set_params(min_samples_leaf=1)
    clf = FoldMean(tree, random_state=0).fit(X, y)
    assert (clf.refitted_.predict(X) == y).all()
    assert (clf.oof_proba_.argmax(1) == y).mean() < 0.65  # five standard deviations above one half


def test_a_small_study(tmp_path, monkeypatch):
    monkeypatch.setattr(measures, "NEW_ROWS", 500)
    monkeypatch.setattr(measures, "ROWS", 120)
    measures.world.cache_clear()
    try:
        made = study.run(seeds=2, sets=("blobs-1.3",), learners=("logistic", "tree"), out=tmp_path)
        found = read_results(tmp_path / "results.json")
        assert [(r["learner"], r["seed"]) for r in found.records] == [
            (n, s) for n in ("logistic", "tree") for s in (0, 1)
        ]
        assert set(found.records[0]) >= {"mean", "refit", "split", "folds"}
        monkeypatch.setattr(study.measures, "measure", None)  # nothing is measured twice
        again = study.run(source=tmp_path / "results.json", out=tmp_path / "again")
        assert again.read_text() == made.read_text()
        study.run(seeds=2, sets=("blobs-1.3",), learners=("logistic", "tree"), out=tmp_path)
    finally:
        measures.world.cache_clear()
    with pytest.raises(ValueError, match="learners must be among logistic"):
        study.run(learners=("forest",), out=tmp_path)

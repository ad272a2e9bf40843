"""The study of guarantees: exact risks by hand, verdicts on simulated records, and a small run."""

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.base import clone

from calibrant.selective import RejectionRule, Window
from studies import guarantees
from studies.guarantees import FIXED, LEARNERS, SCORES, TESTS, FoldMean, World, fixed_rules, kept

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
    names = [*(f"{test} 0.1" for test in TESTS), *(f"fixed {t:g}" for t in FIXED)]
    rules = {name: {"found": True, "bound": 0.1, "risk": risk, "accepted": 0.5} for name in names}
    sets = {name: {"coverage": coverage + 0.001 * (seed % 2), "size": 1.2} for name in SCORES}
    return {
        "dataset": dataset,
        "learner": "tree",
        "seed": seed,
        "mean": {"rules": rules, "sets": sets},
        "folds": {"rules": rules},
    }


@pytest.mark.parametrize(
    ("broken", "coverage", "words"),
    [(3, 0.9, ["holds"] * 3), (12, 0.9, ["missed", "missed", "holds"]), (0, 0.8, ["holds", "holds", "missed"])],
)
def test_targets(broken, coverage, words):
    """Sixty data sets of two kinds, where rules of the second kind are broken: it cannot hide behind the first."""
    records = [record("a", s, 0.05, 0.95) for s in range(30)]
    records += [record("b", s, 0.2 if s < broken else 0.05, coverage) for s in range(30)]
    lines = guarantees.targets(records).splitlines()[2:]
    assert [line.split("|")[-2].strip() for line in lines] == words
    assert all(f"most: {broken / 30:.3f} (tree, {'b' if broken else 'a'}, risk 0.1)" in line for line in lines[:2])
    rules = guarantees.frame(records, "rules")
    assert (
        guarantees.share(rules[(rules["name"] == "ranks 0.1") & (rules["final"] == "mean")]["broken"]).value
        == broken / 60
    )
    assert "mean of the fold models" in guarantees.sets_table(records)
    assert "Threshold 0.7" in guarantees.bounds_table(records)


def test_fold_models_never_saw_the_row():
    """A tree that memorises: out of fold it is right no more often than by chance."""
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(300, 2)), generator.integers(0, 2, 300)
    tree = clone(LEARNERS["tree"]).set_params(min_samples_leaf=1)
    clf = FoldMean(tree, random_state=0).fit(X, y)
    assert (clf.refitted_.predict(X) == y).all()
    assert (clf.oof_proba_.argmax(1) == y).mean() < 0.65  # five standard deviations above one half

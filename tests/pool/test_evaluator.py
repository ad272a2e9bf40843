"""Fast evaluation of trees: the same sums as scikit-learn's own predictors, whichever route is taken."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from calibrant.pool import evaluator
from calibrant.pool.boosted_trees import StoredBoosted

ROWS = 2_500


def inputs(seed: int, n: int = ROWS) -> np.ndarray:
    """Numbers, integers, nine columns of zeros and ones, and a constant column."""
    random = np.random.default_rng(seed)
    bits = random.random((n, 9)) < 0.3
    return np.hstack([random.normal(size=(n, 3)), random.integers(0, 5, (n, 2)), bits, np.ones((n, 1))])


def grown(leaves: int, missing: bool, classes: int = 3) -> tuple[HistGradientBoostingClassifier, StoredBoosted]:
    X = inputs(0)
    y = (X[:, 0] * X[:, 1] + X[:, 3] + X[:, 5:9].sum(1) + np.random.default_rng(1).normal(size=ROWS)).round() % classes
    if missing:
        X[::4, 0] = X[::3, 3] = X[::5, 6] = np.nan
    settings = {"max_iter": 70 if leaves == 4 else 6, "max_leaf_nodes": leaves, "min_samples_leaf": 5}
    model = HistGradientBoostingClassifier(**settings, early_stopping=False).fit(X, y)
    return model, StoredBoosted.of(model, 1000, model._baseline_prediction.ravel(), range(classes))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("leaves", [4, 16, 31, 60, 90])
def test_sums_are_those_of_scikit_learn(leaves, missing):
    """Words of 16, 32 and 64 bits, trees that are too large for a word, and more trees than one block has."""
    model, forest = grown(leaves, missing)
    assert (forest._evaluator.most > 64) == (leaves == 90)
    X = inputs(2)
    X[::7, 0], X[1::7, 1] = np.inf, -np.inf
    if missing:
        X[::3, 0] = X[::5, 1] = X[::2, 3] = X[::3, 7] = np.nan
    expected = model._raw_predict(X)
    for rows in (1, 20, 33, ROWS):  # few rows walk down the trees
        assert forest.scores(X[:rows]) == pytest.approx(expected[:rows], abs=1e-12)


def test_several_threads_and_single_rows_add_up_the_same_leaves():
    _, forest = grown(31, missing=True)
    X, own = inputs(3, 7_000), forest._evaluator
    X[::5, 0] = np.nan
    whole = own.sums(X, 3, threads=1)
    assert own.sums(X, 3, threads=3) == pytest.approx(whole, abs=1e-12)
    assert np.vstack([own.sums(row[None], 3) for row in X[:50]]) == pytest.approx(whole[:50], abs=1e-12)


def test_any_layout_of_the_inputs_and_no_rows():
    model, forest = grown(31, missing=True)
    X = np.round(inputs(7), 3).astype(np.float32)
    expected = model._raw_predict(X.astype(np.float64))
    wide = np.hstack([X, X])
    for form in (X, np.asfortranarray(X), wide[:, : X.shape[1]], np.repeat(X, 2, axis=0)[::2]):
        assert forest.scores(form) == pytest.approx(expected, abs=1e-12)
    assert forest.scores(X[:0]).shape == (0, 3)


def test_predictions_at_the_same_time_do_not_share_memory():
    """Two models, several callers each, started before the models' tables exist."""
    models, X = [grown(31, missing=True), grown(16, missing=False)], inputs(8, 6_000)
    jobs = [(k % 2, X[50 * k : 50 * k + 3_000]) for k in range(60)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads interrupt each other often
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda job: models[job[0]][1].scores(job[1]), jobs))
    finally:
        sys.setswitchinterval(usual)
    for (which, rows), scores in zip(jobs, found, strict=True):
        assert scores == pytest.approx(models[which][0]._raw_predict(rows), abs=1e-12)


def test_columns_with_few_thresholds_share_a_table(monkeypatch):
    _, forest = grown(31, missing=False)
    X = inputs(4)
    shared = forest.scores(X)
    monkeypatch.setattr(evaluator, "CELLS", 1)
    assert np.array_equal(forest.scores(X), shared)


@pytest.mark.parametrize("trees", [1, 2, 127, 128, 129])
def test_odd_numbers_of_trees_and_unfinished_steps(trees, monkeypatch):
    """The last tree without a partner, and rows that do not fill a step or a part."""
    monkeypatch.setattr(evaluator, "STEP", 100)
    monkeypatch.setattr(evaluator, "ROWS", 1_111)
    X = inputs(6)
    y = X[:, 0] * X[:, 1] + X[:, 3] > 1
    model = HistGradientBoostingClassifier(max_iter=trees, max_leaf_nodes=8, early_stopping=False).fit(X, y)
    forest = StoredBoosted.of(model, trees, model._baseline_prediction.ravel(), [0])
    assert forest.scores(X)[:, 0] == pytest.approx(model.decision_function(X), abs=1e-12)


def test_trees_of_one_leaf_and_no_trees_add_constants():
    X = inputs(5)
    forest = StoredBoosted.constant(np.array([0.5, -1.0]))
    assert forest.scores(X) == pytest.approx(np.tile([0.5, -1.0], (ROWS, 1)))
    stump = {"feature": 0, "threshold": 0.0, "missing_left": 0, "left": 0, "right": 0, "leaf": 1, "value": 2.0}
    arrays = {name: np.array([value, value]) for name, value in stump.items()}
    forest = StoredBoosted(**arrays, starts=np.array([0, 1, 2]), column=np.array([1, 1]), baseline=np.zeros(2))
    for rows in (1, ROWS):
        assert forest.scores(X[:rows]) == pytest.approx(np.tile([0.0, 4.0], (rows, 1)))

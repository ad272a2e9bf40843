"""Tests of pool members other than networks: frozen trees equal scikit-learn's; one path position for all folds."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from calibrant.pool import boosted_trees as trees
from calibrant.pool.boosted_trees import MOST, TRIED, VERY_WIDE, WIDE, StoredBoosted, Trees, telling_columns
from calibrant.pool.linear_member import Line, Linear
from calibrant.pool.pool_members import ModelPath, Rows, best_place, cross_fit, held_out_loss

FEW = Trees(learning_rate=0.1, iterations=30, patience=10)
KINDS = {"trees": FEW, "linear": Linear()}
"""A new member is one more row."""
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def table(n: int = 300, classes: int = 3, seed: int = 0) -> Rows:
    """Classes that one column and the product of two others tell apart."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(n, 4))
    scores = np.stack([2 * inputs[:, 0] * k + k * inputs[:, 1] * inputs[:, 2] for k in range(classes)], axis=1)
    return Rows(inputs, (scores + random.gumbel(size=(n, classes))).argmax(1), None, classes)


def folds(n: int, number: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    rows = np.arange(n)
    return [(rows[rows % number != k], rows[rows % number == k]) for k in range(number)]


@pytest.mark.parametrize("classes", [2, 3])
def test_a_frozen_forest_predicts_what_scikit_learn_does(classes):
    """Missing values included, some of them in columns that had none in training."""
    rows = table(500, classes)
    inputs = rows.inputs.copy()
    inputs[::7, 0] = np.nan
    model = HistGradientBoostingClassifier(max_iter=20, early_stopping=False).fit(inputs, rows.labels)
    start = model._baseline_prediction.ravel()
    baseline, column = (np.array([0.0, start[0]]), [1]) if classes == 2 else (start, range(3))
    forest = StoredBoosted.of(model, 20, baseline, column)
    fresh = table(9_000, classes, seed=1).inputs  # more rows than one block
    fresh[::5, 0] = fresh[::3, 2] = np.nan
    expected = model.predict_proba(fresh)
    assert np.exp(log_softmax(forest.scores(fresh), axis=1)) == pytest.approx(expected, abs=1e-12)
    fewer = list(model.staged_predict_proba(fresh))[6]
    first = StoredBoosted.of(model, 7, forest.baseline, forest.column[: len(start)])
    assert np.exp(log_softmax(first.scores(fresh), axis=1)) == pytest.approx(fewer, abs=1e-12)
    forest.check(4, classes)


def test_the_mean_of_forests_has_the_mean_of_their_logits():
    rows = table()
    forests = [FEW.path(rows.take(a), rows.take(b), 0).at(k + 3) for k, (a, b) in enumerate(folds(300))]
    mean = FEW.mean(forests)
    expected = np.mean([forest.scores(rows.inputs) for forest in forests], axis=0)
    assert mean.scores(rows.inputs) == pytest.approx(expected, abs=1e-12)
    mean.check(4, 3)


WRONG = [
    ("left", lambda v: np.where(v < 0, v, v + 100)),
    ("right", lambda v: v * 0),
    ("feature", lambda v: v + 4),
    ("feature", lambda v: -4 - v),
    ("threshold", lambda v: v[1:]),
    ("starts", lambda v: v[1:]),
    ("starts", lambda v: v[:0]),
    ("starts", lambda v: v + 1),
    ("column", lambda v: v + 3),
    ("value", lambda v: v[1:]),
    ("baseline", lambda v: v[1:]),
]


def test_trees_that_were_tampered_with_are_refused():
    """A wrong child number would lead to a node of another tree, or in circles."""
    rows = table(100)
    forest = FEW.path(rows, rows, 0).at(2)
    forest.check(4, 3)
    for field, change in WRONG:
        with pytest.raises(ValueError, match="forest"):
            dataclasses.replace(forest, **{field: change(getattr(forest, field))}).check(4, 3)


def test_trees_see_the_telling_columns_of_wide_rows():
    """Splits are numbered by the columns of the inputs, not by those that were chosen."""
    rows = table(200)
    noise = np.random.default_rng(5).normal(size=(200, 400))
    wide = rows._replace(inputs=np.concatenate([noise, rows.inputs], axis=1))
    columns = telling_columns(wide)
    assert len(columns) == WIDE
    assert 400 in columns
    forest = FEW.path(wide, wide, 0).at(20)
    used = set(forest.feature[forest.inner])
    assert used <= set(columns)
    assert 400 in used
    assert held_out_loss(forest.scores(wide.inputs), wide) < 0.7 * np.log(3)


@each_kind
def test_rows_are_judged_by_models_that_never_saw_them(kind):
    """Labels of held-out rows do not move their own predictions, given the place on the path."""
    rows = table(150)
    found = cross_fit(kind, rows, folds(150), 0)
    assert found.held_out.shape == (150, 3)
    assert np.exp(found.held_out).sum(1) == pytest.approx(1)
    for train, held in folds(150):
        own = kind.path(rows.take(train), rows.take(held), 0).at(found.place)
        assert log_softmax(own.scores(rows.inputs[held]), axis=1) == pytest.approx(found.held_out[held])


@each_kind
def test_rows_that_no_fold_holds_out_have_no_prediction(kind):
    rows = table(150)
    found = cross_fit(kind, rows, [(np.arange(100), np.arange(100, 120))], 0)
    assert np.isnan(found.held_out).all(1).tolist() == [not 100 <= k < 120 for k in range(150)]


@each_kind
@pytest.mark.parametrize("present", [[0, 1, 2], [1, 3], [0, 3], [2]], ids=str)
def test_classes_that_a_fold_lacks_are_improbable_and_not_impossible(kind, present):
    rows = table(120)
    rows = rows._replace(labels=np.array(present)[rows.labels % len(present)], n_classes=4)
    held = rows._replace(labels=np.arange(120) % 4)
    log_probs = log_softmax(kind.path(rows, held, 0).at(2).scores(rows.inputs), axis=1)
    absent = [k for k in range(4) if k not in present]
    assert np.isfinite(log_probs).all()
    assert np.exp(log_probs[:, absent]).mean() < 0.05
    if len(present) > 1:
        assert (log_probs.argmax(1) == rows.labels).mean() > 1 / len(present)


@each_kind
def test_a_member_that_fails_the_first_fold_stops_early(kind, monkeypatch):
    rows, seen, trained = table(150), [], []
    path = type(kind).path
    monkeypatch.setattr(type(kind), "path", lambda self, *a: (trained.append(1), path(self, *a))[1])

    def promising(held, log_probs):
        seen.append((held, log_probs.shape))
        return False

    assert cross_fit(kind, rows, folds(150), 0, promising) is None
    assert len(trained) == 1
    assert seen[0][0].tolist() == folds(150)[0][1].tolist()
    assert seen[0][1] == (50, 3)


def test_one_place_is_chosen_for_all_folds():
    paths = [
        ModelPath(np.array(losses), ()) for losses in ([3.0, 2.0, 1.0, 4.0], [3.0, 1.0, 2.0], [1.0, 1.0, 0.5, 9.0])
    ]
    assert best_place(paths) == 2


def test_the_line_is_logistic_regression_at_the_chosen_penalty():
    rows = table(400)
    train, held = folds(400)[0]
    path = Linear().path(rows.take(train), rows.take(held), 0)
    place = best_place([path])
    expected = LogisticRegression(C=Linear().inverse_penalties[place], tol=1e-8, max_iter=1000)
    expected.fit(rows.inputs[train], rows.labels[train])
    found = np.exp(log_softmax(path.at(place).scores(rows.inputs[held]), axis=1))
    assert found == pytest.approx(expected.predict_proba(rows.inputs[held]), abs=1e-3)
    assert path.losses[place] == pytest.approx(held_out_loss(path.at(place).scores(rows.inputs[held]), rows.take(held)))


@each_kind
def test_weights_of_rows_count(kind):
    rows = table(300, 2)
    heavy = rows._replace(sample_weight=np.where(rows.labels == 1, 5.0, 1.0))
    plain, tilted = (cross_fit(kind, each, folds(300), 0).held_out for each in (rows, heavy))
    assert np.exp(tilted[:, 1]).mean() > np.exp(plain[:, 1]).mean() + 0.05


def test_a_line_of_the_wrong_size_is_refused():
    with pytest.raises(ValueError, match="4 coefficients"):
        Line(np.zeros((2, 3)), np.zeros(2)).check(4, 2)


def test_constant_columns_tell_nothing():
    rows = table(100)
    wide = rows._replace(inputs=np.concatenate([np.ones((100, 300)), rows.inputs], axis=1))
    assert {300, 301, 302, 303} <= set(telling_columns(wide).tolist())


def test_the_mean_forest_is_bounded():
    """Prediction time grows with the trees, so fold models beyond the bound are left out, except the first."""
    rows = table(100, 2)
    forest = FEW.path(rows, rows, 0).at(20)
    many = StoredBoosted.mean([forest] * 10)
    assert len(FEW.mean([forest] * 3).column) == 60
    assert len(FEW.mean([many] * 5).column) == MOST // 200 * 200
    assert len(FEW.mean([StoredBoosted.mean([forest] * 30)] * 2).column) == 600


@pytest.mark.parametrize(("classes", "most"), [(2, 30), (12, 25)])
def test_iterations_are_fewer_where_each_takes_many_trees(classes, most):
    rows = table(150, classes)
    kind = dataclasses.replace(FEW, trees=300, patience=1000)
    assert len(kind.path(rows, rows, 0).at(1000).column) == most * (1 if classes == 2 else classes)


def test_small_tables_are_grown_by_one_thread(monkeypatch):
    """On a small table, threads mostly wait for each other; on a large one they save time."""
    limits, used = [], []
    fit = HistGradientBoostingClassifier.fit

    @contextmanager
    def limited(number: int, user_api: str) -> Iterator[None]:
        limits.append(number)
        yield
        limits.pop()

    monkeypatch.setattr(trees, "threadpool_limits", limited)
    monkeypatch.setattr(
        HistGradientBoostingClassifier, "fit", lambda *a, **k: (used.append(list(limits)), fit(*a, **k))[1]
    )
    rows = table(120)
    FEW.path(rows, rows, 0)
    monkeypatch.setattr(trees, "SERIAL", 100)
    FEW.path(rows, rows, 0)
    assert used == [[1], []]


@pytest.mark.parametrize(
    ("columns", "classes", "rate", "tried"),
    [(VERY_WIDE, 3, 0.2, 0.5), (VERY_WIDE + 1, 3, 0.4, TRIED), (VERY_WIDE + 1, 2, 0.1, 0.5), (WIDE, 3, 0.1, 0.5)],
)
def test_trees_for_many_columns_and_classes_take_larger_steps(columns, classes, rate, tried):
    rng = np.random.default_rng(0)
    rows = Rows(rng.normal(size=(60, columns)), np.arange(60) % classes, None, classes)
    model = dataclasses.replace(FEW, iterations=1).path(rows, rows, 0).model
    assert model.learning_rate == pytest.approx(rate)
    assert model.max_features == tried

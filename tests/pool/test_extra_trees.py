"""Tests of the forest member: frozen trees equal scikit-learn's, and shrinkage follows its equation."""

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.ensemble import ExtraTreesClassifier

from calibrant.pool import extra_trees as bagged
from calibrant.pool.extra_trees import ExtraTrees, rounded_down, shrunk_shares
from calibrant.pool.pool_members import Rows, cross_fit, held_out_loss
from tests.pool.test_members import folds, table

FEW = ExtraTrees(trees=20)
PLAIN = ExtraTrees(trees=20, shrinkages=(0.0,), inverse_temperatures=(1.0,))


@pytest.mark.parametrize("classes", [2, 3])
def test_a_frozen_forest_predicts_what_scikit_learn_does(classes):
    """Missing values included; every probability is smoothed by one row of no known class."""
    rows = table(400, classes)
    inputs = rows.inputs.astype(np.float32)
    inputs[::7, 0] = np.nan
    path = PLAIN.path(rows._replace(inputs=inputs), rows, 0)
    fresh = table(9_000, classes, seed=1).inputs.astype(np.float32)  # more rows than one step
    fresh[::5, 0] = np.nan
    expected = (400 * path.model.predict_proba(fresh) + 1 / classes) / 401
    forest = path.at(0)
    for rows_at_once in (9_000, 9, 1, 0):
        found = np.exp(forest.scores(fresh[:rows_at_once]))
        assert found == pytest.approx(expected[:rows_at_once], abs=1e-7)  # stored as float32
    forest.check(4, classes)


def test_sharpened_probabilities():
    rows = table(200)
    path = ExtraTrees(trees=20, shrinkages=(3.0, 0.0), inverse_temperatures=(1.0, 2.5)).path(rows, rows, 0)
    assert path.at(3).scores(rows.inputs) == pytest.approx(2.5 * path.at(2).scores(rows.inputs))
    assert np.abs(path.at(2).scores(rows.inputs) - path.at(0).scores(rows.inputs)).max() > 0.1
    assert path.at(1).inverse_temperature == 2.5


def test_shares_are_shrunk_along_each_path():
    """The equation of the module, evaluated node by node."""
    rows = table(60)
    model = ExtraTreesClassifier(3, random_state=0).fit(rows.inputs, rows.labels)
    for strength in (0.0, 5.0):
        expected = []
        for tree in (each.tree_ for each in model.estimators_):
            own = tree.value[:, 0].copy()
            for node in np.flatnonzero(tree.children_left >= 0):  # parents come before their children
                for child in (tree.children_left[node], tree.children_right[node]):
                    step = tree.value[child, 0] - tree.value[node, 0]
                    own[child] = own[node] + step / (1 + strength / tree.weighted_n_node_samples[node])
            expected.append(own)
        assert shrunk_shares(model, strength) == pytest.approx(np.concatenate(expected), abs=1e-12)


def test_the_losses_of_a_path_are_those_of_its_forests():
    rows = table(200)
    train, held = folds(200)[0]
    path = FEW.path(rows.take(train), rows.take(held), 0)
    found = [held_out_loss(path.at(k).scores(rows.inputs[held]), rows.take(held)) for k in range(len(path.losses))]
    assert path.losses == pytest.approx(np.array(found), rel=1e-5)
    assert len(set(path.losses)) == len(FEW.shrinkages) * len(FEW.inverse_temperatures)


def test_labels_that_nothing_explains_are_shrunk_to_their_frequencies():
    random = np.random.default_rng(0)
    rows = Rows(random.normal(size=(400, 3)), (random.random(400) < 0.3).astype(int), None, 2)
    found = cross_fit(FEW, rows, folds(400), 0)
    assert found.place == 0
    assert np.abs(np.exp(found.held_out[:, 1]) - 0.3).mean() < 0.1


def test_the_mean_has_the_first_trees_of_each_fold(monkeypatch):
    rows = table(150)
    forests = [PLAIN.path(rows.take(a), rows.take(b), 0).at(0) for a, b in folds(150)]
    expected = np.mean([np.exp(forest.scores(rows.inputs)) for forest in forests], axis=0)
    assert np.exp(PLAIN.mean(forests).scores(rows.inputs)) == pytest.approx(expected)
    monkeypatch.setattr(bagged, "MOST", 32)
    fewer = PLAIN.mean(forests)
    assert len(fewer.starts) - 1 == 30
    expected = np.mean([np.exp(forest.first(10).scores(rows.inputs)) for forest in forests], axis=0)
    assert np.exp(fewer.scores(rows.inputs)) == pytest.approx(expected)
    fewer.check(4, 3)


def test_inputs_must_have_the_columns_of_the_splits():
    """Compiled trees do not check the column numbers."""
    rows = table(100)
    with pytest.raises(ValueError, match="at least 4 columns; got 3"):
        FEW.path(rows, rows, 0).at(2).scores(rows.inputs[:, :3])


def test_rounded_thresholds_split_as_before():
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    after = np.nextafter(values, np.float32(np.inf))
    thresholds = values + 0.9 * (after.astype(np.float64) - values)
    np.testing.assert_array_equal(rounded_down(thresholds), values)
    np.testing.assert_array_equal(rounded_down(values.astype(np.float64)), values)


def test_a_fold_without_held_out_rows():
    rows = table(100)
    path = FEW.path(rows, rows.take(np.arange(0)), 0)
    assert np.isfinite(log_softmax(path.at(0).scores(rows.inputs), axis=1)).all()

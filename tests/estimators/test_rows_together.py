"""Tests of copies, groups and user-defined folds in the classifiers."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit

from calibrant import BO4SCClassifier, CrossCalibrated, SelfCalibratedClassifier

QUICK = {"epochs": 60, "random_state": 0, "members": ("network",), "hidden_layer_sizes": (16,)}


def noisy(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two classes with a fifth of the labels flipped."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(rows, 2))
    flipped = generator.random(rows) < 0.2
    return X, ((X.sum(1) > 0) ^ flipped).astype(int)


def nll(clf, seed=9):
    X, y = noisy(4000, seed)
    return -np.log(clf.predict_proba(X)[np.arange(4000), y]).mean()


def test_repeated_rows_give_what_the_same_rows_give_once():
    """Twenty columns, so that a network can learn the labels of 100 rows by heart."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(2100, 20))
    y = ((X[:, 0] > 0) ^ (generator.random(2100) < 0.2)).astype(int)
    train, test = (X[:100], y[:100]), (X[100:], y[100:])
    repeated = np.tile(train[0], (5, 1)), np.tile(train[1], 5)
    settings = QUICK | {"epochs": 150, "embedding": None}

    def loss(clf, data):
        return -np.log(clf.fit(*data).predict_proba(test[0])[np.arange(2000), test[1]]).mean()

    once, often = (loss(SelfCalibratedClassifier(**settings), data) for data in (train, repeated))
    assert often == pytest.approx(once, abs=0.1)
    scattered = SelfCalibratedClassifier(cv=KFold(5, shuffle=True, random_state=0), **settings)
    assert loss(scattered, repeated) > 2 * once


def test_near_copies_are_held_out_together_with_a_warning():
    X, y = noisy(60)
    X = np.repeat(X, 6, axis=0) + 1e-3 * np.random.default_rng(1).normal(size=(360, 2))
    y, groups = np.repeat(y, 6), np.repeat(np.arange(60).astype(str), 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named = SelfCalibratedClassifier(**QUICK).fit(X, y, groups=groups)
        scattered = SelfCalibratedClassifier(cv=KFold(5, shuffle=True, random_state=0), **QUICK).fit(X, y)
    with pytest.warns(UserWarning, match="held out together"):
        found = SelfCalibratedClassifier(**QUICK).fit(X, y)

    def held_out(clf):
        return -np.log(clf.oof_proba_[np.arange(360), y]).mean()

    assert held_out(found) == pytest.approx(held_out(named), abs=0.08)
    assert held_out(scattered) < held_out(named)


@pytest.mark.parametrize("kind", [BO4SCClassifier, SelfCalibratedClassifier])
def test_a_held_out_part_keeps_groups_and_copies_whole(kind):
    X, y = noisy(40)
    X, y = np.tile(X, (5, 1)), np.tile(y, 5)
    settings = {"refit": False} if kind is SelfCalibratedClassifier else {}
    for groups in (None, np.arange(200) % 40):
        data = X if groups is None else X + np.random.default_rng(0).normal(size=X.shape)
        clf = kind((4,), epochs=10, random_state=0, **settings).fit(data, y, groups=groups)
        train, held = clf.train_indices_ % 40, clf.validation_indices_ % 40
        assert len(held)
        assert not set(train) & set(held)


@pytest.mark.parametrize("members", [("network",), ("network", "trees", "linear")])
def test_a_splitter_names_the_folds(members):
    X, y = noisy(90)
    settings = QUICK | {"members": members}
    groups = np.arange(90) // 6
    clf = SelfCalibratedClassifier(cv=GroupKFold(3), **settings).fit(X, y, groups=groups)
    assert np.isfinite(clf.oof_proba_).all()
    pairs = list(GroupKFold(3).split(X, y, groups))
    same = SelfCalibratedClassifier(cv=pairs, **settings).fit(X, y, groups=groups)
    np.testing.assert_array_equal(clf.predict_proba(X), same.predict_proba(X))
    half = SelfCalibratedClassifier(
        cv=[(np.arange(30, 90), np.arange(30)), (np.arange(30), np.arange(30, 60))], **settings
    )
    assert np.isnan(half.fit(X, y).oof_proba_[60:]).all()


def test_a_splitter_is_not_written_to_a_file(tmp_path):
    X, y = noisy(60)
    clf = SelfCalibratedClassifier(cv=KFold(3), **QUICK).fit(X, y)
    clf.save(tmp_path / "model")
    again = SelfCalibratedClassifier.load(tmp_path / "model")
    assert again.cv is None
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


def test_a_number_of_folds_and_rows_of_weight_zero():
    X, y = noisy(60)
    five = SelfCalibratedClassifier(cv=3, **QUICK).fit(X, y)
    folds = SelfCalibratedClassifier(folds=3, **QUICK).fit(X, y)
    np.testing.assert_array_equal(five.predict_proba(X), folds.predict_proba(X))
    weights = np.ones(60)
    weights[::4] = 0
    clf = SelfCalibratedClassifier(cv=KFold(3), **QUICK).fit(X, y, weights)
    assert np.isnan(clf.oof_proba_[::4]).all()
    assert np.isfinite(clf.oof_proba_[weights > 0]).all()


@pytest.mark.parametrize(
    ("settings", "fit", "words"),
    [
        ({"cv": KFold(3), "refit": False}, {}, "cannot be combined with refit=False"),
        ({"cv": KFold(3)}, {"X_val": np.zeros((4, 2)), "y_val": [0, 1, 0, 1]}, "leave out the validation part"),
        ({"cv": "three"}, {}, "cv must be a number of folds"),
        ({"cv": 1}, {}, "cv must be at least 2 folds"),
        ({}, {"groups": [1] * 60}, "groups must hold at least two"),
    ],
)
def test_errors(settings, fit, words):
    X, y = noisy(60)
    with pytest.raises(ValueError, match=words):
        SelfCalibratedClassifier(**QUICK | settings).fit(X, y, **fit)


def test_two_rows_support_no_more_than_three_quarters():
    pools = [("network",), ("network", "trees", "linear")]
    classifiers = [SelfCalibratedClassifier(epochs=30, members=members, random_state=0) for members in pools]
    for clf in (*classifiers, CrossCalibrated(LogisticRegression(C=1e6), random_state=0)):
        probs = clf.fit([[-1.0], [1.0]], [0, 1]).predict_proba([[-100.0], [100.0]])
        assert probs.max() <= 0.75 + 1e-9


def test_overlapping_folds_hold_out_all_their_rows():
    X, y = noisy(80)
    folds = list(ShuffleSplit(3, test_size=0.25, random_state=0).split(X))
    folds.insert(1, folds[0])  # only rows that are known already
    clf = SelfCalibratedClassifier(cv=folds, **QUICK | {"members": ("network", "linear")}).fit(X, y)
    held = np.unique(np.concatenate([rows for _, rows in folds]))
    assert len(held) < sum(len(rows) for _, rows in folds)
    assert np.array_equal(np.flatnonzero(np.isfinite(clf.oof_proba_).all(axis=1)), held)

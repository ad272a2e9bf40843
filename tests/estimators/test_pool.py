"""Tests of the pool of networks, trees and linear models: which members are kept, and saving and loading."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from calibrant import SelfCalibratedClassifier
from calibrant.methods import Mixture, Samples, SelfCalibrated, Task
from calibrant.methods.blend import MOST_CLASSES, Blend
from tests.estimators.cases import QUICK, three_classes

X, y = three_classes()

POOL = QUICK["self-calibrated"]


def steps(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels of a fine chequerboard, a tenth of them wrong; easy for trees and hard for small networks."""
    random = np.random.default_rng(seed)
    X = random.uniform(size=(n, 2))
    return X, (np.floor(4 * X).sum(1) % 2 != (random.random(n) < 0.1)).astype(int)


def coin(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels that nothing explains."""
    random = np.random.default_rng(seed)
    return random.normal(size=(n, 3)), (random.random(n) < 0.3).astype(int)


def nll(probs: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(probs[np.arange(len(y)), y]).mean())


def test_the_pool_is_the_default_and_says_what_it_kept():
    fitted = clone(POOL).fit(X, y)
    assert POOL.members == ("network", "trees", "linear")
    assert isinstance(fitted.model_, Blend)
    assert fitted.members_ == fitted.model_.members
    assert set(fitted.members_) <= set(POOL.members)
    assert len(fitted.pool_weights_) == len(fitted.members_)
    assert (fitted.pool_weights_ > 0).all()
    assert fitted.temperature_ == pytest.approx(1 / fitted.pool_weights_.sum())


def test_a_member_that_knows_better_carries_the_pool():
    X, y = steps(800)
    fitted = clone(POOL).fit(X, y)
    weights = dict(zip(fitted.members_, fitted.pool_weights_, strict=True))
    assert weights["trees"] > 0.5 * fitted.pool_weights_.sum()
    fresh, labels = steps(2_000, seed=1)
    alone = clone(POOL).set_params(members=("network",)).fit(X, y)
    assert nll(fitted.predict_proba(fresh), labels) < nll(alone.predict_proba(fresh), labels) - 0.05


def test_networks_alone_need_no_pool():
    """The classifier is then that of the method: the mean of networks with a temperature, biases and a lapse rate."""
    fitted = clone(POOL).set_params(members=["network"]).fit(X, y)
    assert isinstance(fitted.model_, Mixture)
    assert fitted.members_ == ("network",)
    assert fitted.pool_weights_ == pytest.approx(1 / fitted.temperature_)
    own = SelfCalibrated((8,), folds=2, epochs=20, steps=5, learning_rate=0.05)
    seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
    task = Task(Samples(fitted.scaling_.apply(X), torch.from_numpy(y)), None, 3, seed)
    found = own.fit(task)
    assert fitted.predict_proba(X) == pytest.approx(found.probs(fitted.scaling_.apply(X)).numpy(), abs=1e-5)
    assert fitted.temperature_ == found.temperature


@pytest.mark.parametrize("members", [("network",), ("network", "trees"), ("network", "trees", "linear")], ids=str)
def test_out_of_fold_probabilities(members):
    """They come from models that never saw the label, so they cannot predict coin flips."""
    X, y = coin(90)
    weights = np.ones(90)
    weights[5] = 0
    fitted = clone(POOL).set_params(members=members).fit(X, y, weights)
    found = fitted.oof_proba_
    assert found.shape == (90, 2)
    missing = np.isnan(found).any(1)
    assert missing[5]
    assert missing.sum() <= 3  # equal folds leave out less than one row each
    assert found[~missing].sum(1) == pytest.approx(1)
    assert nll(found[~missing], y[~missing]) > 0.9 * nll(np.tile([1 - y.mean(), y.mean()], (90, 1)), y)


def test_out_of_fold_probabilities_of_a_held_out_part():
    fitted = clone(POOL).set_params(refit=False).fit(X, y)
    assert len(fitted.model_.mixture.networks) == 1
    assert len(fitted.validation_indices_) == 22
    assert np.isfinite(fitted.suspicion_).all()
    known = np.flatnonzero(~np.isnan(fitted.oof_proba_).any(1))
    assert known.tolist() == fitted.validation_indices_.tolist()
    given = clone(POOL).set_params(refit=False).fit(X, y, X_val=X[:30], y_val=y[:30])
    assert np.isnan(given.oof_proba_).all()


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (("trees",), "must include 'network'"),
        (("network", "woods"), "'network', 'linear', 'trees', each once; got"),
        (("network", "trees", "trees"), "each once"),
        ("network", "must be a tuple"),
    ],
)
def test_members_are_checked(members, words):
    with pytest.raises(ValueError, match=words):
        clone(POOL).set_params(members=members).fit(X, y)


def test_a_pool_that_knows_nothing_is_saved_and_read(tmp_path):
    X, y = coin(150)
    fitted = clone(POOL).fit(X, y)
    fitted.model_ = Blend(None, {}, fitted.model_.pool._replace(weights=np.empty(0)))
    fitted.temperature_ = float("inf")
    fitted.save(tmp_path / "model")
    again = SelfCalibratedClassifier.load(tmp_path / "model")
    assert again.temperature_ == float("inf")
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert np.ptp(again.predict_proba(X), axis=0).max() == 0


def test_many_classes_have_no_trees(monkeypatch):
    fitted = {}
    for most in (2, 3):
        monkeypatch.setitem(MOST_CLASSES, "trees", most)
        fitted[most] = clone(POOL).set_params(members=("network", "trees")).fit(X, y).members_
    assert "trees" not in fitted[2]
    assert "trees" in fitted[3]

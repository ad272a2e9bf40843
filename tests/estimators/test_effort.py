"""Tests of the memory and time that a fit to sparse columns is said to take."""

import sys

import numpy as np
import pytest
from scipy import sparse

from calibrant import SelfCalibratedClassifier
from calibrant.estimators import effort
from calibrant.estimators.effort import Effort, available_memory

SMALL = Effort(rows=1000, dense=0, sparse=2000, entries=20_000, classes=2)


def test_a_fit_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr(effort, "available_memory", lambda: 2**20)
    X = sparse.random_array((60, 600), density=0.05, format="csr", rng=np.random.default_rng(0))
    clf = SelfCalibratedClassifier(random_state=0)
    with pytest.raises(
        ValueError, match=r"60 rows × 600 sparse columns, 2 classes needs about 0\.\d GB of memory; got 0"
    ):
        clf.fit(X, np.arange(60) % 2)
    assert not hasattr(clf, "encoder_")


def test_unknown_memory_is_enough(monkeypatch):
    monkeypatch.setattr(effort, "available_memory", lambda: None)
    SMALL._replace(rows=10**9).check()


@pytest.mark.parametrize("name", Effort._fields)
def test_more_data_need_more_memory(name):
    larger = SMALL._replace(**{name: getattr(SMALL, name) * 1000 + 1})
    assert larger.memory > SMALL.memory
    assert larger.seconds >= SMALL.seconds


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")
def test_the_memory_of_this_machine_is_known():
    assert 2**20 < available_memory() < 2**50


def test_a_verbose_fit_says_how_long_it_takes(capsys):
    X = sparse.random_array((60, 600), density=0.05, format="csr", rng=np.random.default_rng(0))
    SelfCalibratedClassifier((4,), folds=2, epochs=2, members=("network",), random_state=0, verbose=True).fit(
        X, np.arange(60) % 2
    )
    assert "60 rows × 600 sparse columns, 2 classes: about 0.2 GB and" in capsys.readouterr().err

"""Tests of the memory that a fit to sparse columns is said to take."""

import sys

import numpy as np
import pytest
from scipy import sparse

from calibrant import SelfCalibratedClassifier
from calibrant.estimators import memory as effort
from calibrant.estimators.reading import inputs_of

SMALL = {"rows": 1000, "dense": 0, "columns": 2000, "entries": 20_000, "n_classes": 2}
X = sparse.random_array((60, 600), density=0.05, format="csr", rng=np.random.default_rng(0))


def test_a_fit_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr(effort, "available_memory", lambda: 2**20)
    clf = SelfCalibratedClassifier(random_state=0)
    with pytest.raises(ValueError, match=r"60 rows × 600 sparse columns, 2 classes needs about 0\.\d GB"):
        clf.fit(X, np.arange(60) % 2)
    assert not hasattr(clf, "encoder_")
    monkeypatch.setattr(effort, "available_memory", lambda: None)  # a system that does not say
    effort.check_memory(inputs_of(X, wide=True), 2)


@pytest.mark.parametrize("name", SMALL)
def test_more_data_need_more_memory(name):
    assert effort.memory(**SMALL | {name: SMALL[name] * 1000 + 1}) > effort.memory(**SMALL)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")
def test_the_memory_of_this_machine_is_known():
    assert 2**20 < effort.available_memory() < 2**50

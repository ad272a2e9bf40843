"""Tests of jobs in other processes: everything can be pickled, and results equal those of a serial run."""

from __future__ import annotations

import pickle

import joblib
import pytest
import torch
from torch import nn

import calibrant
from calibrant.bilevel import OUTER_LOSSES, averaged, composed
from calibrant.losses.classification import brier
from calibrant.methods import BO4SC, METHODS, Calibrated, SelfCalibrated, Standard, fit_all
from tests.methods.test_methods import diverging, short, task


def jobs(*methods):
    """A population of two for each method, in float64, because threads may round in another order."""
    return [(short(m, epochs=6), task(seed, dtype=torch.float64)) for m in methods for seed in range(2)]


FEW = jobs(Standard(), diverging(BO4SC()))
MANY = jobs(Standard(), BO4SC(), SelfCalibrated(folds=2), Calibrated("temperature"), diverging(BO4SC(steps=3)))


def same(plan, found):
    for (_, own), one, other in zip(plan, found, fit_all(plan), strict=True):
        assert (one.failure is None) == (other.failure is None)
        if other.failure is None:
            torch.testing.assert_close(one.probs(own.val.inputs), other.probs(own.val.inputs), atol=1e-8, rtol=0)


def test_processes_give_the_results_of_a_serial_run():
    with joblib.parallel_config(backend="loky", n_jobs=2):
        found = fit_all(FEW, callbacks=lambda description: [])
    same(FEW, found)


@pytest.mark.slow
def test_ray_gives_the_results_of_a_serial_run():
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        register_ray()
        with joblib.parallel_config(backend="ray", n_jobs=2):
            found = fit_all(MANY)
    finally:
        ray.shutdown()
    same(MANY, found)


def test_threads_are_refused():
    with (
        joblib.parallel_config(backend="threading", n_jobs=2),
        pytest.raises(ValueError, match="cannot run as threads"),
    ):
        fit_all(FEW)


@pytest.mark.parametrize("name", METHODS)
def test_what_was_fitted_can_be_sent(name):
    method, own = short(METHODS[name].method, epochs=6), task()
    assert pickle.loads(pickle.dumps(method)) == method
    fitted = method.fit(own)
    twin = pickle.loads(pickle.dumps(fitted))
    assert torch.equal(twin.probs(own.val.inputs), fitted.probs(own.val.inputs))
    assert twin.extras.keys() == fitted.extras.keys()


def test_what_fit_gives_can_be_sent():
    own = task()
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 5))
    data = [(part.inputs, part.labels) for part in (own.train, own.val)]
    result = calibrant.fit(model, *data, method=BO4SC(epochs=5))
    twin = pickle.loads(pickle.dumps(result))
    assert torch.equal(twin.probs(own.val.inputs), result.probs(own.val.inputs))
    assert torch.equal(twin.module(own.val.inputs), result.module(own.val.inputs))


@pytest.mark.parametrize(
    "make",
    [
        *OUTER_LOSSES.values(),
        composed,
        averaged,
        lambda: composed(brier),
        Standard(gamma=1.0).inner_loss,
    ],
)
def test_losses_are_values(make):
    assert make() == make()
    assert pickle.loads(pickle.dumps(make())) == make()
    assert hash(make()) == hash(make())

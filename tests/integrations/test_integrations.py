"""Tests of trackers, Lightning, torchmetrics and Hugging Face's Trainer on small data."""

from __future__ import annotations

import doctest
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import calibrant
from calibrant import integrations, metrics
from calibrant.integrations import Tracker, trackers
from calibrant.methods import Samples
from calibrant.methods.fit import calibrate as after_training
from calibrant.methods.fit import guards as watching

ROOT = Path(__file__).parents[2]
NAMES = {"nll", "accuracy", "smooth_ece", "temperature", "nll_calibrated"}


def data(seed=0):
    torch.manual_seed(seed)
    x = torch.randn(90, 4)
    return (x[:60], (x[:60, 0] > 0).long()), (x[60:], (x[60:, 0] + torch.randn(30) > 0).long())


def fitted(tracker, networks=1):
    train, val = data()
    return calibrant.fit(nn.Linear(4, 2), train, val, epochs=30, networks=networks, callbacks=[tracker])


@pytest.mark.parametrize("module", [watching, after_training, trackers])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


def test_a_function_sees_losses_validation_scores_and_the_result():
    seen = []
    result = fitted(Tracker(lambda values, step: seen.append((step, values)), every=2))
    steps = [step for step, _ in seen]
    assert steps == [2, 4, 6, 6]  # thirty steps, five to an outer step, and the end
    assert set(seen[0][1]) == {"train/loss"} | {f"val/{name}" for name in NAMES}
    end = seen[-1][1]
    assert set(end) == {"calibrated/nll", "calibrated/smooth_ece", "calibrated/accuracy", "calibrated/temperature"}
    x, y = data()[1]
    assert end["calibrated/nll"] == pytest.approx(float(metrics.nll(result.probs(x), y)))
    assert end["calibrated/temperature"] == result.temperature


def test_scores_use_the_weights_of_the_validation_data():
    train, (x, y) = data()
    weights = torch.arange(30) % 3  # as often as each row occurs
    rows = torch.repeat_interleave(torch.arange(30), weights)
    seen = []
    for val in (Samples(x, y, weights.double()), Samples(x[rows], y[rows])):
        tracker = Tracker(lambda values, step: seen.append(values))
        torch.manual_seed(0)
        calibrant.fit(nn.Linear(4, 2), train, val, method="standard", epochs=5, seed=0, callbacks=[tracker])
    weighted, repeated = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert [set(values) for values in weighted] == [set(values) for values in repeated]
    for one, other in zip(weighted, repeated, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_several_networks_have_their_own_names():
    seen = {}
    fitted(Tracker(lambda values, step: seen.update(values)), networks=2)
    assert {"train/loss", "network-1/train/loss", "network-1/val/nll", "calibrated/nll"} <= set(seen)


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        fitted(Tracker(writer, every=3))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = {name: [e.value for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert len(scalars["train/loss"]) == 2
    assert {"val/smooth_ece", "calibrated/temperature"} <= set(scalars)


def test_mlflow_and_runs_with_a_log():
    calls = []

    def log_metrics(metrics, step=None, synchronous=None):  # as in MLflow
        calls.append((step, set(metrics)))

    fitted(Tracker(log_metrics, every=6))
    run = types.SimpleNamespace(log=log_metrics)  # as in Weights & Biases
    fitted(Tracker(run, every=6))
    assert [step for step, _ in calls] == [6, 6] * 2
    assert {"train/loss", "val/nll"} <= calls[0][1]


def test_objects_that_are_no_trackers():
    with pytest.raises(TypeError, match="must be a function"):
        Tracker(3)
    with pytest.raises(ValueError, match="every must be at least 1"):
        Tracker(print, every=0)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        integrations.Nothing  # noqa: B018

"""Tests of instance weights (Jain & Shenoy): the outer loss, the weight network, and the method."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.bilevel import Bilevel, WeightNetwork, variance_loss
from calibrant.methods import InstanceWeights, Samples, Task, fit_all
from tests.blobs import blobs


def small_task(seed=4):
    data = blobs(60, 3.0, seed=seed)
    x, y = torch.tensor(data.inputs / 8, dtype=torch.float64), torch.tensor(data.labels)
    return Task(Samples(x[:40], y[:40]), Samples(x[40:], y[40:]), 5, seed=seed)


def test_outer_loss_is_cross_entropy_plus_variance_over_passes():
    task, strength, draws = small_task(), 0.7, 3
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 5)).double()
    problem = Bilevel(
        net,
        WeightNetwork(2, 5, labels=False),
        train=(task.train.inputs, task.train.labels),
        val=(task.val.inputs, task.val.labels),
        outer_loss=variance_loss(strength=strength, draws=draws),
        outer_mode="train",
    )
    batch = problem.val_batch(0)
    found, _ = problem.outer(problem.initial_params(problem.initial_phi()), {}, problem.initial_phi(), batch)
    hidden = torch.relu(net[0](task.val.inputs))
    masks = [batch.noise[f"2.mask{k}"] for k in range(draws)]
    assert not torch.equal(masks[0], masks[1])
    logits = torch.stack([net[3](hidden * mask) for mask in masks])
    error = torch.stack([F.cross_entropy(own, task.val.labels) for own in logits]).mean()
    variance = logits.softmax(-1).var(0, unbiased=True).sum(-1).mean()
    torch.testing.assert_close(found, error + strength * variance)
    other = problem.val_batch(1).noise["2.mask0"]
    assert not torch.equal(other, masks[0])


def test_the_network_of_weights_may_be_blind_to_labels():
    x, y = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 2
    blind, seeing = WeightNetwork(3, 2, labels=False), WeightNetwork(3, 2)
    with torch.no_grad():
        for network in (blind, seeing):
            network.last.weight.fill_(0.5)
    assert torch.equal(blind.weights(x, y), blind.weights(x, 1 - y))
    assert not torch.equal(seeing.weights(x, y), seeing.weights(x, 1 - y))


def test_it_learns_weights_and_repeats_itself():
    method, task = InstanceWeights(hidden=(6,), epochs=60), small_task()
    fitted, again = method.fit(task), method.fit(task)
    weights = fitted.extras["sample_weights"]
    assert weights.shape == (40,)
    assert ((weights > 0) & (weights < 1)).all()
    assert weights.std() > 0
    assert torch.equal(fitted.probs(task.val.inputs), again.probs(task.val.inputs))


def test_members_of_a_population_equal_their_single_runs():
    method, tasks = InstanceWeights(hidden=(6,), epochs=30), [small_task(4), small_task(5)]
    together = fit_all([(method, task) for task in tasks])
    for fitted, task in zip(together, tasks, strict=True):
        torch.testing.assert_close(fitted.probs(task.val.inputs), method.fit(task).probs(task.val.inputs))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dropout": 0.0}, "dropout must lie"),
        ({"draws": 1}, "draws must be at least 2"),
        ({"strength": -1.0}, "strength must be"),
    ],
)
def test_settings_without_meaning_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        InstanceWeights(**settings)

"""Tests of BO4SC against a plain implementation of Algorithm 1, and on wrong labels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from calibrant.methods import BO4SC, Samples, Task, suspicion
from calibrant.models import mlp
from tests.blobs import blobs, flip_labels


def small_task(dtype=torch.float64):
    data = blobs(50, 3.0, seed=3)
    x, y = torch.tensor(data.inputs / 8, dtype=dtype), torch.tensor(data.labels)
    return Task(Samples(x[:30], y[:30]), Samples(x[30:], y[30:]), 5, seed=4)


def algorithm_1(task, *, steps, rounds, learning_rate, outer_learning_rate, alpha):
    """Sanguin et al. 2024, Algorithm 1 with Adam inside (Section 4), by plain automatic differentiation."""
    net = mlp(2, 5, hidden=(6,), seed=task.seed).double()
    names = [k for k, _ in net.named_parameters()]
    theta = [p.detach() for p in net.parameters()]
    first = [torch.zeros_like(p) for p in theta]
    second = [torch.zeros_like(p) for p in theta]
    w, t = torch.ones(len(task.train), dtype=torch.float64), 0
    for _ in range(rounds):
        w = w.requires_grad_()
        for _ in range(steps):
            t += 1
            theta = [p if p.requires_grad else p.requires_grad_() for p in theta]
            logits = torch.func.functional_call(net, dict(zip(names, theta, strict=True)), (task.train.inputs,))
            g = (w * F.cross_entropy(logits, task.train.labels, reduction="none")).mean()  # Eq. (10)
            grads = torch.autograd.grad(g, theta, create_graph=True)
            first = [0.9 * m + 0.1 * d for m, d in zip(first, grads, strict=True)]
            second = [0.999 * v + 0.001 * d * d for v, d in zip(second, grads, strict=True)]
            theta = [
                p
                - learning_rate
                * (m / (1 - 0.9**t))
                / (torch.where(v > 0, v, 1.0).sqrt() * (v > 0) / (1 - 0.999**t) ** 0.5 + 1e-8)
                for p, m, v in zip(theta, first, second, strict=True)
            ]
        logits = torch.func.functional_call(net, dict(zip(names, theta, strict=True)), (task.val.inputs,))
        p = logits.softmax(1)
        confidence = (p * (alpha * p).softmax(1)).sum(1)  # the Boltzmann operator
        right = (p.argmax(1) == task.val.labels).double()
        f = F.binary_cross_entropy(confidence, right)  # Eq. (12), (13)
        (hypergradient,) = torch.autograd.grad(f, w)  # Eq. (14)
        w = (w - outer_learning_rate * hypergradient).clamp(0, 1).detach()
        theta, first, second = ([x.detach() for x in xs] for xs in (theta, first, second))
    return w


@pytest.mark.parametrize(("steps", "rounds"), [(1, 3), (4, 2)])
def test_it_is_algorithm_1(steps, rounds):
    settings = {"learning_rate": 0.01, "outer_learning_rate": 200.0, "alpha": 25.0}
    expected = algorithm_1(small_task(), steps=steps, rounds=rounds, **settings)
    method = BO4SC(hidden=(6,), steps=steps, epochs=steps * rounds, **settings)
    found = method.fit(small_task()).extras["sample_weights"]
    assert (expected < 1).double().mean() > 0.01
    assert torch.allclose(found, expected, atol=1e-7)


def test_weight_history_begins_at_one_and_ends_at_the_weights():
    fitted = BO4SC(hidden=(6,), steps=2, epochs=10, keep_history=True).fit(small_task())
    history = fitted.extras["sample_weights_history"]
    assert history.shape == (6, 30)
    assert torch.equal(history[0], torch.ones(30, dtype=torch.float64))
    assert torch.equal(history[-1], fitted.extras["sample_weights"])
    assert fitted.extras["history"]["outer_loss"].shape == (5,)


@pytest.mark.parametrize(
    "settings",
    [
        {"inner": "sgd"},
        {"hypergradient": "truncated"},
        {"hypergradient": "implicit"},
        {"outer_loss": "nll"},
        {"outer_loss": "brier"},
        {"outer_loss": "sece"},
        {"outer_loss": "dece"},
        {"weights": "prior"},
        {"weights": "neighbours"},
        {"form": "sigmoid"},
        {"also": ("l2",)},
        {"also": ("label-smoothing", "l2-unit")},
        {"weights": None, "also": ("l2", "label-noise")},
        {"restart": True},
    ],
    ids=str,
)
def test_every_variant_moves_its_outer_variables(settings):
    rate = None if settings.get("weights", "sample") is None else 50.0
    fitted = BO4SC(hidden=(6,), steps=2, epochs=20, outer_learning_rate=rate, **settings).fit(small_task(torch.float32))
    weights = fitted.sample_weights
    if settings.get("weights", "sample") is None:
        assert weights is None
    else:
        assert weights.shape == (30,)
        assert ((weights >= 0) & (weights <= 1)).all()
        assert weights.std() > 0
    for name, start in {"l2": 1e-4, "label_smoothing": 0.01, "label_noise": 0.01}.items():
        if name in fitted.extras:
            assert (fitted.extras[name] - start).abs().min() > 0


@pytest.mark.slow
def test_wrong_labels_lose_their_weight_and_are_found():
    data = blobs(1000, 1.3, seed=0)
    x = torch.tensor((data.inputs - data.inputs.mean(0)) / data.inputs.std(0), dtype=torch.float32)
    labels, flipped = flip_labels(data.labels[:700], 0.2, seed=1)
    train = Samples(x[:700], torch.tensor(labels))
    fitted = BO4SC().fit(Task(train, Samples(x[700:], torch.tensor(data.labels[700:])), 5))
    weights, flipped = fitted.extras["sample_weights"], torch.tensor(flipped)
    assert weights[flipped].mean() < weights[~flipped].mean() - 0.3
    found = suspicion(weights, fitted.probs(train.inputs), train.labels)
    first = found.argsort(descending=True)[: int(flipped.sum())]
    assert flipped[first].double().mean() > 0.8


@pytest.mark.filterwarnings("error")  # the linear solve ends early by design
def test_the_implicit_hypergradient_survives_a_non_convex_inner_loss():
    """Rectified units, five steps at a time, the paper's step sizes: most outer steps meet negative curvature."""
    data = blobs(1000, 1.3, seed=500)
    x, y = torch.tensor(data.inputs, dtype=torch.float32), torch.tensor(data.labels)
    task = Task(Samples(x[:700], y[:700]), Samples(x[700:], y[700:]), 5, seed=500)
    fitted = BO4SC(hypergradient="implicit", epochs=200).fit(task)
    assert fitted.failure is None
    weights = fitted.extras["sample_weights"]
    assert 0.001 < (weights < 0.5).double().mean() < 0.5


def test_without_weights_there_are_none_to_tell():
    fitted = BO4SC(hidden=(6,), weights=None, also=("l2",), epochs=10, keep_history=True).fit(small_task())
    assert fitted.sample_weights is None
    assert not {"sample_weights", "sample_weights_history"} & set(fitted.extras)

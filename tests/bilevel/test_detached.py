"""Tests of losses that detach values: the hypergradient differentiates through them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from calibrant.bilevel import (
    SGD,
    Adam,
    Bilevel,
    FocalWithGamma,
    Forward,
    Implicit,
    OneStep,
    Population,
    SampleWeights,
    Truncated,
    Unrolled,
)
from calibrant.bilevel.gradients.loss_derivatives import constant
from calibrant.bilevel.running.outer_step import outer_step
from calibrant.bilevel.running.run import Run
from calibrant.losses import focal
from tests.bilevel.differences import central_differences

SAMPLES, CLASSES, STEPS = 20, 3, 6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(2, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.fc(torch.tanh(self.body(x)))


class Gamma(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, features):
        return nn.functional.softplus(3 * self.layer(features)).squeeze(1)


def detached(net, outer, batch):
    features = net.features(batch.inputs)
    return focal(net.head(features), batch.targets, outer(features.detach()))


def by_data(net, outer, batch):
    features = net.features(batch.inputs)
    return focal(net.head(features), batch.targets, outer(features.data))


def without_grad(net, outer, batch):
    with torch.no_grad():
        hidden = net.features(batch.inputs)
        with torch.no_grad():
            hidden = hidden * 1.5
        hidden = hidden.detach() / 1.5
    return focal(net.logits(batch.inputs), batch.targets, outer(hidden))


def in_place(net, outer, batch):
    features = net.features(batch.inputs)
    return focal(net.head(features), batch.targets, outer(features.detach().clone().clamp_(-0.9, 0.9)))


def gamma_too(net, outer, batch):
    """The detached value also depends on φ."""
    features = net.features(batch.inputs)
    gamma = outer(features.detach())
    return focal(net.head(features), batch.targets, gamma * (1 + gamma.detach()))


def of_logits(net, outer, batch):
    """The detached value depends on the head and on φ."""
    features = net.features(batch.inputs)
    logits, gamma = net.head(features), outer(features.detach())
    return focal(logits, batch.targets, gamma) / (1 + (gamma * logits.square().mean(1)).mean()).detach()


divided = FocalWithGamma(body_share=0.25)  # the gradient of the body is not that of any loss
LOSSES = [detached, by_data, without_grad, in_place, gamma_too, of_logits, divided]


def problem(loss, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(2 * SAMPLES, 2, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (2 * SAMPLES,))
    torch.manual_seed(seed + 10)
    model, outer = Net().double(), Gamma()
    train, val = (x[:SAMPLES], y[:SAMPLES]), (x[SAMPLES:], y[SAMPLES:])
    return Bilevel(model, outer, train=train, val=val, inner_loss=loss, batch_size=7, seed=seed)


def value(one, optimizer, hypergradient, phi, anchor):
    """F after training by autograd, as the loss is written; φ acts in the last steps only."""
    params, moments = one.start.clone(), optimizer.init(one.start)
    last = getattr(hypergradient, "last", hypergradient.steps)
    for step in range(hypergradient.steps):
        own = phi if step >= hypergradient.steps - last else anchor
        leaf = params.clone().requires_grad_()
        (grad,) = torch.autograd.grad(one.inner(leaf, {}, own, one.train_batch(step))[0], leaf)
        params, moments = optimizer.update(params, moments, grad, step + 1)
    return one.outer(params, {}, phi, one.val_batch(0))[0].detach()


HYPERGRADIENTS = {
    "unrolled": (Unrolled(STEPS), None),
    "checkpoints": (Unrolled(STEPS, memory="checkpoints"), None),
    "traced": (Unrolled(STEPS), "trace"),
    "truncated": (Truncated(STEPS, 4), None),
    "forward": (Forward(STEPS), None),
    "one step": (OneStep(), None),
}


@pytest.mark.parametrize("kind", HYPERGRADIENTS)
@pytest.mark.parametrize("loss", LOSSES)
def test_hypergradients_agree_with_finite_differences(loss, kind):
    hypergradient, compile = HYPERGRADIENTS[kind]
    one, optimizer = problem(loss), SGD(0.5, momentum=0.8)
    run = Run(one, hypergradient, optimizer, Adam(0.0), 1, compile=compile)
    outer_step(run)
    phi = one.initial_phi()
    directions, slopes = central_differences(lambda p: value(one, optimizer, hypergradient, p, phi), phi)
    torch.testing.assert_close(directions @ run.gradient, slopes, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("first", ["outer", "inner"])
@pytest.mark.parametrize("loss", [detached, gamma_too, of_logits, divided])
def test_the_head_in_place_and_as_a_pure_function_agree(loss, first):
    found = []
    for compile in (None, "trace"):
        run = Run(problem(loss), OneStep(2, "head", first=first), SGD(0.5, momentum=0.8), Adam(0.0), 1, compile=compile)
        outer_step(run)
        found.append(run.gradient)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_a_constant_is_not_differentiated():
    """A factor of the loss that is constant for hypergradients is the same as a number."""

    def scaled(factor):
        def loss(net, outer, batch):
            features = net.features(batch.inputs)
            return factor(outer(features.detach()).mean()) * focal(net.head(features), batch.targets, outer(features))

        return loss

    found = []
    for factor in (constant, Tensor.item, Tensor.detach):
        run = Run(problem(scaled(factor)), OneStep(), SGD(0.5), Adam(0.0), 1)
        outer_step(run)
        found.append(run.gradient)
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(found[0], found[2], rtol=1e-3)


@pytest.mark.parametrize("hypergradient", [Unrolled(STEPS), Implicit(STEPS, "head")], ids=["unrolled", "head"])
@pytest.mark.parametrize("loss", [detached, of_logits, divided])
def test_members_follow_the_same_path(loss, hypergradient):
    members = [problem(loss), problem(loss, 1)]
    together = Run(Population(members), hypergradient, SGD(0.5), Adam(0.0), 1)
    outer_step(together)
    for k, member in enumerate(members):
        alone = Run(member, hypergradient, SGD(0.5), Adam(0.0), 1)
        outer_step(alone)
        torch.testing.assert_close(together.gradient[k], alone.gradient, rtol=1e-9, atol=1e-12)


def test_a_loss_that_detaches_nothing_pays_nothing():
    one = problem(lambda net, outer, batch: focal(net.logits(batch.inputs), batch.targets, 1.0))
    assert not one.detaches
    assert problem(detached).detaches
    x, y = torch.randn(6, 2), torch.randint(0, 2, (6,))
    assert not Bilevel(nn.Linear(2, 2), SampleWeights(6), train=(x, y), val=(x, y)).detaches

"""Tests of sample weights in the validation part: they count in every choice that is made on it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import calibrant
from calibrant.bilevel import Adam, Bilevel, Callback, Plain, solve
from calibrant.losses.classification import cross_entropy
from calibrant.methods import Samples
from calibrant.methods.averaged import BestAverage, mean_on
from calibrant.methods.fit.trained import Calculated
from calibrant.methods.image_networks import error
from calibrant.methods.standard import best_subset

COUNTS = torch.arange(24) % 5
"""A sample with weight k counts as k samples."""


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 2, generator=generator)
    return x, (x[:, 0] + torch.randn(24, generator=generator) > 0).long()


def repeated():
    return tuple(values.repeat_interleave(COUNTS, 0) for values in data())


def network():
    net = nn.Linear(2, 2)
    net.load_state_dict({"weight": torch.tensor([[-3.0, 0.5], [3.0, 0.0]]), "bias": torch.tensor([0.2, 0.0])})
    return net


def train(callback):
    problem = Bilevel(network(), train=data())
    solve(problem, hypergradient=Plain(1), inner_optimizer=Adam(0.1), outer_steps=3, callbacks=[callback])


@pytest.mark.parametrize("prepare", [None, lambda inputs: inputs], ids=["at once", "in pieces"])
def test_the_best_average(prepare, monkeypatch):
    monkeypatch.setattr("calibrant.methods.core.samples.PIECE", 8)  # inputs that are prepared are predicted in pieces
    weighted, copies = BestAverage(Samples(*data(), COUNTS.float(), prepare=prepare)), BestAverage(Samples(*repeated()))
    train(weighted)
    train(copies)
    assert weighted.nll == pytest.approx(copies.nll, rel=1e-5)


class Read(Callback):
    def __init__(self, function, *parts):
        self.function, self.parts = function, parts

    def on_step(self, run):
        self.found = [float(mean_on(run, run.state, part, self.function)) for part in self.parts]


@pytest.mark.parametrize("function", [error, cross_entropy])
def test_the_best_state_of_a_recipe(function):
    parts = Samples(*data(), COUNTS.float()), Samples(*repeated()), Samples(*data())
    callback = Read(function, *parts)
    train(callback)
    weighted, copies, unweighted = callback.found
    assert weighted == pytest.approx(copies, rel=1e-5)
    assert weighted != pytest.approx(unweighted, rel=1e-3)


def test_the_networks_of_an_ensemble():
    (x, y), right = data(), Calculated(network())
    wrong = Calculated(nn.Linear(2, 2).requires_grad_(False))
    wrong.module.load_state_dict({k: -v for k, v in right.module.state_dict().items()})
    hits = right.logits(x).argmax(1) == y
    for chosen, weights in ((right, hits), (wrong, ~hits)):
        assert best_subset([right, wrong], Samples(x, y, weights.float())) == (chosen,)


def test_the_temperature_of_a_trained_network():
    weighted = calibrant.calibrate(network(), Samples(*data(), COUNTS.float()))
    assert weighted.temperature == pytest.approx(calibrant.calibrate(network(), repeated()).temperature, rel=1e-4)

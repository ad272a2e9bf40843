"""Tests of the choice of a default method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.methods import Calibrated, CrossFitted, Samples, Standard, Task, default_method
from calibrant.methods.core.samples import as_part
from calibrant.methods.fit.defaults import NEW, TUNED
from calibrant.methods.fit.untrained import is_pretrained, is_untrained
from calibrant.methods.recipes import RECIPES, SMALL_RECIPES
from calibrant.methods.standard import VariedRates
from calibrant.metrics import nll


def part(n):
    return Samples(torch.zeros(n, 2), torch.arange(n) % 2)


def test_small_data_get_several_networks_and_everything_else_one():
    net = nn.Linear(2, 2)
    small, large = Task(part(20), part(10), 2), Task(part(5000), part(10), 2)
    for model in (net, None, lambda seed: nn.Linear(2, 2)):
        assert default_method(model, small) == CrossFitted()
    assert default_method(net, Task(part(20), None, 2)) == CrossFitted()
    recipe = SMALL_RECIPES["perceptron"]
    assert default_method(net, large) == Calibrated("map", recipe)
    assert default_method(net, large, "temperature") == Calibrated("prior-temperature", recipe)
    assert default_method(net, Task(part(5000), None, 2)) == recipe


def test_loaders_of_few_samples_get_several_networks_too():
    net, samples = nn.Linear(2, 2), TensorDataset(torch.randn(20, 2), torch.arange(20) % 2)
    recipe = SMALL_RECIPES["perceptron"]
    several, one = Calibrated("map", VariedRates(NEW, 3)), Calibrated("map", recipe)
    many = TensorDataset(torch.zeros(5000, 2), torch.arange(5000) % 2)
    cases = {
        "few": (DataLoader(samples, batch_size=5, shuffle=True), several),
        "many": (DataLoader(many), one),
        "not told": ([(torch.zeros(20, 2), torch.arange(20) % 2)], one),
    }
    for name, (loader, method) in cases.items():
        given = as_part(loader, net)
        assert default_method(net, Task(given, part(10), 2)) == method, name
        assert default_method(net, Task(given, None, 2)) == recipe


def test_an_error_about_the_number_of_networks_names_the_argument():
    both = (torch.zeros(20, 2), torch.arange(20) % 2), (torch.zeros(10, 2), torch.arange(10) % 2)
    with pytest.raises(ValueError, match="networks must be at most 10 with validation data"):
        calibrant.fit(nn.Linear(2, 2), *both, networks=11)


NETWORKS = {
    "linear": lambda: nn.Linear(20, 10),
    "conv": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 3)),
    "lstm": lambda: nn.LSTM(3, 8, 2),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "embedding": lambda: nn.Sequential(nn.Embedding(30, 8, padding_idx=0), nn.LayerNorm(8)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_new_until_it_is_trained(name):
    """A network looks new after every draw, but not after a few steps of training."""
    torch.manual_seed(0)
    for _ in range(20):
        assert is_untrained(NETWORKS[name]())
    net = NETWORKS[name]()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        sum((p * torch.randn_like(p)).sum() for p in net.parameters()).backward()
        optimizer.step()
    assert not is_untrained(net)
    assert is_pretrained(net)


def test_trained_networks_are_tuned_and_large_ones_trained_once():
    frozen, seen = nn.Linear(2, 2), nn.BatchNorm1d(2)
    frozen.bias.requires_grad_(False)
    seen(torch.randn(4, 2))
    task = Task(part(20), part(10), 2)
    for net in (frozen, seen):
        assert default_method(net, task) == Calibrated("map", VariedRates(TUNED, 3))
    assert default_method(nn.Linear(2, 2), replace(task, redraw=False)) == Calibrated("map", VariedRates(NEW, 3))
    large = nn.Sequential(nn.Linear(2, 600), nn.Linear(600, 2000), nn.Linear(2000, 2))
    assert default_method(large, task) == Calibrated("map", RECIPES["perceptron"])
    large[0].bias.requires_grad_(False)
    assert default_method(large, task) == Calibrated("map", RECIPES["pretrained"])
    assert default_method(large, task, pretrained=False) == Calibrated("map", RECIPES["perceptron"])


def rows(count, generator):
    """Ten numbers, of which the class depends on four; it is drawn from a softmax."""
    x = torch.randn(count, 10, generator=generator)
    noise = -torch.log(-torch.log(torch.rand(count, 3, generator=generator)))
    return x, (2 * torch.tanh(x[:, :3]) + x[:, 1:4] + noise).argmax(1)


PLAIN = Standard(epochs=None, learning_rate=0.001, batch_size=128)


@pytest.mark.slow
def test_large_data_default_is_no_worse_than_plain_training():
    generator = torch.Generator().manual_seed(0)
    train, val, test = (rows(count, generator) for count in (4200, 800, 4000))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 3))
    default, plain = (calibrant.fit(net, train, val, method=method) for method in ("auto", PLAIN))
    assert float(nll(default.probs(test[0]), test[1])) <= float(nll(plain.probs(test[0]), test[1]))

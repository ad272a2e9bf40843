"""The rule by which a method is chosen where none is named."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.methods import Calibrated, CrossFitted, Part, Standard, Task, default_method
from calibrant.methods.loaded import as_part


def part(n):
    return Part(torch.zeros(n, 2), torch.arange(n) % 2)


def test_small_data_in_memory_get_folds_and_everything_else_one_network():
    net = nn.Linear(2, 2)
    small, large = Task(part(20), part(10), 2), Task(part(5000), part(10), 2)
    assert isinstance(default_method(net, small), CrossFitted)
    assert isinstance(default_method(net, large), Calibrated)
    assert isinstance(default_method(net, Task(part(5000), None, 2)), Standard)
    loader = as_part(DataLoader(TensorDataset(torch.zeros(20, 2), torch.arange(20) % 2)), net)
    assert isinstance(default_method(net, Task(loader, part(10), 2)), Calibrated)


def test_a_trained_network_is_not_drawn_anew():
    frozen, seen = nn.Linear(2, 2), nn.BatchNorm1d(2)
    frozen.bias.requires_grad_(False)
    seen(torch.randn(4, 2))
    for net in (frozen, seen):
        assert isinstance(default_method(net, Task(part(20), part(10), 2)), Calibrated)

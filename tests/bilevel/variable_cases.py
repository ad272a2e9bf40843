"""A small problem for outer variables, and values that show mixed-up entries."""

from __future__ import annotations

import torch
from torch import nn

from calibrant.bilevel import OuterVariable

TRAIN, VAL, CLASSES = 12, 9, 3


def filled(outer: OuterVariable) -> OuterVariable:
    """Different random values everywhere, so that mixed-up entries show."""
    torch.manual_seed(2)
    outer = outer.double()
    with torch.no_grad():
        for parameter in outer.parameters():
            parameter.uniform_(0.05, 0.95)
    return outer


def split():
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(TRAIN + VAL, 2, generator=generator)
    y = torch.randint(0, CLASSES, (TRAIN + VAL,), generator=generator)
    return (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])


def linear_model():
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()

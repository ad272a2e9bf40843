"""Data for the tests of streams."""

from __future__ import annotations

import torch

from calibrant.data import Batch

SIZE = 23


def numbered(size=SIZE):
    """Inputs whose values identify the sample."""
    x = torch.arange(size, dtype=torch.float64)[:, None] * torch.tensor([1.0, 10.0], dtype=torch.float64)
    return x, torch.arange(size) % 3


def jitter(inputs, generator):
    return inputs + torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)


def same(a: Batch, b: Batch):
    return (
        torch.equal(a.inputs, b.inputs)
        and torch.equal(a.targets, b.targets)
        and (torch.equal(a.index, b.index) if isinstance(a.index, torch.Tensor) else a.index == b.index)
    )


X, Y = numbered()

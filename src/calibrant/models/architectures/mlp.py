"""The multilayer perceptron of the first paper, and first layers that embed each number of a row.

First layers that embed each number of a row, so that a network can bend sharply along one column. A perceptron on
standardised columns learns smooth functions first. It needs many steps to learn a threshold in one column, which a tree
finds at once. The layer here keeps the linear map and adds features of single columns to it::

    h(x) = W·x + b + V·e(x)

``e`` is piecewise linear (Gorishniy et al. 2022, "On Embeddings for Numerical Features in Tabular Deep Learning"). In
that paper, embeddings replace the numbers. Here V is a separate matrix that starts at zero, so its L2 strength can
switch the embedding off. Categories need no extra layer: one-hot columns times W are an embedding of the category.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant.base.settings import check_choice
from calibrant.models.functional.global_state import seeded_start

BINS = 8
LARGEST = 512
"""Largest number of embedded features of all columns together; with many columns, each column has fewer."""


class PiecewiseLinear(nn.Module):
    """``e_t(x) = c·(clip((x − b_{t−1})/(b_t − b_{t−1}), 0, 1) − mean)`` for each bin ``[b_{t−1}, b_t]`` of each column.

    Bins lie between quantiles of ``inputs``; a column with few distinct values has one bin for each gap between them.
    ``c = 0.6/√bins`` makes the features of one column together about as large as a standardised column; they learn
    somewhat more slowly.

    ``source`` says which column each feature is computed from. It is part of the architecture, so the networks of a
    population share it. Other values that are taken from the data are buffers, which may differ between networks.
    """

    source: nn.Parameter
    lower: Tensor
    inverse: Tensor
    mean: Tensor

    def __init__(self, inputs: Tensor, columns: Tensor, bins: int) -> None:
        super().__init__()
        edges = [bin_edges(inputs[:, column], bins) for column in columns.tolist()]
        sizes = torch.tensor([len(column_edges) - 1 for column_edges in edges], device=inputs.device)
        self.source = nn.Parameter(columns.repeat_interleave(sizes), requires_grad=False)
        self.factor = 0.6 / math.sqrt(bins)
        self.register_buffer("lower", torch.cat([column_edges[:-1] for column_edges in edges]))
        self.register_buffer("inverse", torch.cat([1 / column_edges.diff() for column_edges in edges]))
        self.register_buffer("mean", torch.zeros_like(self.lower))
        self.mean = torch.cat([self.inside(piece).sum(0, keepdim=True) for piece in inputs.split(4096)]).sum(0)
        self.mean /= len(inputs)

    @property
    def size(self) -> int:
        """The number of features."""
        return len(self.source)

    def reset_parameters(self) -> None:
        """There is nothing to draw."""

    def inside(self, x: Tensor) -> Tensor:
        """How much of each bin lies below x, 0 to 1."""
        return ((x.index_select(-1, self.source) - self.lower) * self.inverse).clamp(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.inside(x) - self.mean) * self.factor

    def write(self, x: Tensor, out: Tensor) -> Tensor:
        """The features without a gradient, written to ``out``."""
        torch.index_select(x, -1, self.source, out=out)
        out.sub_(self.lower).mul_(self.inverse).clamp_(0, 1)
        return out.sub_(self.mean).mul_(self.factor)


class FromZero(nn.Linear):
    """``V·e`` without a bias, from ``V = 0``."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__(features, width, bias=False)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


class EmbeddingLayer(nn.Module):
    """``W·x + b + V·e(x)``."""

    def __init__(self, features: int, width: int, encoding: PiecewiseLinear) -> None:
        super().__init__()
        self.linear = nn.Linear(features, width)
        self.encoding = encoding
        self.embedded = FromZero(encoding.size, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x) + self.embedded(self.encoding(x))
        return result


def make_encoding(inputs: Tensor, size: int = BINS) -> PiecewiseLinear | None:
    """An encoding of the columns of ``inputs`` (n, d) that hold three values or more; None if no column can be encoded.

    ``size`` is the number of bins per column. It is reduced for many columns. If even two per column exceed
    ``LARGEST`` features in total, nothing is encoded.
    """
    many = [k for k, column in enumerate(inputs.T) if len(column.unique()) > 2]
    size = min(size, LARGEST // max(1, len(many)))
    return PiecewiseLinear(inputs, torch.tensor(many, device=inputs.device), size) if many and size > 1 else None


def bin_edges(values: Tensor, bins: int) -> Tensor:
    """The edges of a column's bins in increasing order: distinct quantiles, including the minimum and the maximum.

    If a column has at most ``bins + 1`` distinct values, all of them are edges. If most values are the same, there are
    two bins.
    """
    distinct = values.unique()
    if len(distinct) <= bins + 1:
        return distinct
    places = torch.linspace(0, len(values) - 1, bins + 1, dtype=torch.float64, device=values.device).round().long()
    edges = values.sort().values[places].unique()
    return edges if len(edges) > 2 else distinct[[0, len(distinct) // 2, -1]]


Activation = Literal["relu", "silu", "tanh"]
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}


def mlp(
    features: int,
    n_classes: int,
    *,
    hidden: Sequence[int] = (64, 64),
    activation: str = "relu",
    dropout: float = 0.0,
    encoding: PiecewiseLinear | None = None,
    seed: int = 0,
) -> nn.Sequential:
    """A multilayer perceptron with one logit per class. The initial parameters are a pure function of ``seed``.

    The first paper (Sanguin et al. 2024, Section 4) only says "a feed forward neural network". Two hidden layers of 64
    ReLU units reproduce its accuracies.

    Parameters
    ----------
    features, n_classes : int
        Number of inputs and of classes.
    hidden : sequence of int
        Units of each hidden layer.
    activation : {"relu", "silu", "tanh"}
        Activation of the hidden units.
    dropout : float
        Share of hidden units that each training pass leaves out.
    encoding : PiecewiseLinear, optional
        Makes the first layer a :class:`calibrant.models.architectures.mlp.EmbeddingLayer`.
    seed : int
        Seed of the initial parameters.
    """
    check_choice("activation", activation, ACTIVATIONS)
    if features < 1 or n_classes < 1 or any(width < 1 for width in hidden):
        raise ValueError(
            "features, n_classes and every hidden width must be at least 1; "
            f"got {features=}, {n_classes=} and hidden={tuple(hidden)}."
        )
    with seeded_start(seed):
        layers: list[nn.Module] = []
        for width, following in itertools.pairwise((features, *hidden)):
            layers += [nn.Linear(width, following), ACTIVATIONS[activation]()]
            layers += [nn.Dropout(dropout)] if dropout else []
        layers.append(nn.Linear((features, *hidden)[-1], n_classes))
        if encoding is not None:
            layers[0] = EmbeddingLayer(features, (*hidden, n_classes)[0], copy.deepcopy(encoding))
        return nn.Sequential(*layers)

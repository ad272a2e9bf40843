"""Trained networks without the machinery that trained them: a few matrices, to be kept, copied and written to disk."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.bilevel import Solution
from calibrant.methods import Mixture

_ROWS = 16_384
"""Rows of one forward pass, to bound memory."""
ACTIVATIONS = {"relu": torch.relu, "silu": F.silu, "tanh": torch.tanh}


@dataclass(frozen=True)
class Perceptron:
    """A trained multilayer perceptron: ``x ↦ W_L·σ(… σ(W_1·x + b_1) …) + b_L``.

    It predicts in float64, so that a row's logits do not depend, beyond the last digits of that, on the rows that
    happen to be asked for with it.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: str = "relu"

    @property
    def params(self) -> Tensor:
        """A tensor on the network's device."""
        return self.weights[0]

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits, (n, C)."""
        return torch.cat([self._forward(piece) for piece in inputs.double().split(_ROWS)])

    def _forward(self, x: Tensor) -> Tensor:
        for position, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.addmm(bias, x if position == 0 else ACTIVATIONS[self.activation](x), weight.T)
        return x


def freeze(mixture: Mixture) -> Mixture:
    """The same classifier, made of nothing but matrices on the CPU, and without what its training left behind."""
    return replace(mixture, networks=tuple(_perceptron(s) for s in mixture.networks), extras={})


def _perceptron(solution: Solution) -> Perceptron:
    layers = solution.problem.view.unflatten(solution.params.detach().double().cpu())
    # A network without hidden layers has no activation, and any name will do.
    kinds = {type(m).__name__.lower() for m in solution.problem.view.module.children()} - {"linear"} or {"relu"}
    (activation,) = kinds
    if activation not in ACTIVATIONS:
        raise ValueError(f"Networks with {activation} units cannot be kept; known are {', '.join(ACTIVATIONS)}.")
    return Perceptron(
        tuple(t.clone() for name, t in layers.items() if name.endswith("weight")),
        tuple(t.clone() for name, t in layers.items() if name.endswith("bias")),
        activation,
    )

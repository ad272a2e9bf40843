"""The mean of several perceptrons, computed together.

The perceptrons of a classifier see the same rows. Their first layers are one matrix product, and an encoding that they
share is computed once. Each further layer is one batched product. Rows are taken in blocks that fit in the cache. All
blocks use the same buffers, because writing to newly allocated memory is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from calibrant.models.architectures.mlp import EmbeddingLayer, PiecewiseLinear
from calibrant.models.functional.global_state import share_out

ROWS = 1024
"""Rows of a block."""
_ACTIVATIONS = (nn.ReLU, nn.SiLU, nn.Tanh)


class Perceptron(NamedTuple):
    """The layers of a perceptron."""

    turn: nn.Linear | None
    """A linear map of the rows before the first layer."""
    encoding: PiecewiseLinear | None
    embedded: nn.Linear | None
    """The part of the first layer that is applied to the encoding."""
    linears: tuple[nn.Linear, ...]
    activations: tuple[nn.Module, ...]
    """The activations between the linear layers."""

    @classmethod
    def of(cls, module: nn.Module) -> Perceptron | None:
        """The layers of a module; None if it is not a perceptron on the CPU."""
        layers = _flat(module)
        if not layers:
            return None
        turned = len(layers) > 1 and type(layers[0]) is nn.Linear and type(layers[1]) in (nn.Linear, EmbeddingLayer)
        turn, layers = (layers[0], layers[1:]) if turned else (None, layers)
        first, linears, activations = layers[0], layers[::2], tuple(layers[1::2])
        encoding = embedded = None
        if isinstance(first, EmbeddingLayer):
            encoding, embedded, linears[0] = first.encoding, first.embedded, first.linear
        supported = all(type(each) is nn.Linear and each.bias is not None for each in linears)
        supported &= all(type(each) in _ACTIVATIONS for each in activations) and len(layers) % 2 == 1
        if not supported or any(p.device.type != "cpu" for p in module.parameters()):
            return None
        return cls(turn, encoding, embedded, tuple(linears), activations)  # type: ignore[arg-type]

    def like(self, other: Perceptron) -> bool:
        """Whether two perceptrons differ only in the weights of their layers."""
        sizes, others = ([each.weight.shape for each in p.linears] for p in (self, other))
        kinds, kinds_of_other = ([type(each) for each in p.activations] for p in (self, other))
        same = sizes == others and kinds == kinds_of_other
        return same and _equal(self.turn, other.turn) and _equal(self.encoding, other.encoding)


class Stack:
    """Perceptrons that differ only in the weights of their layers, and the weights of their logits in a sum."""

    def __init__(self, perceptrons: Sequence[Perceptron], shares: Sequence[float]) -> None:
        self.turn, self.encoding, _, _, self.activations = perceptrons[0]
        self.shares = tuple(shares)
        first, *later = zip(*(p.linears for p in perceptrons), strict=True)
        self.weight = torch.cat([each.weight for each in first]).detach().T
        self.bias = torch.cat([each.bias for each in first]).detach()
        embedded = [p.embedded.weight for p in perceptrons if p.embedded is not None]
        self.embedded = torch.cat(embedded).detach().T if embedded else None
        self.weights = [torch.stack([each.weight for each in layers]).detach().transpose(1, 2) for layers in later]
        self.biases = [torch.stack([each.bias for each in layers]).detach().unsqueeze(1) for layers in later]

    def buffers(self, rows: int) -> tuple[Tensor, ...]:
        """Memory for the encoding and for the outputs of each layer."""
        features = 0 if self.encoding is None else self.encoding.size
        shapes = [(rows, features), (rows, len(self.bias)), *((len(w), rows, w.shape[2]) for w in self.weights)]
        return tuple(self.bias.new_empty(shape) for shape in shapes)

    def add(self, rows: Tensor, total: Tensor, buffers: Sequence[Tensor]) -> None:
        """Add the weighted logits to ``total``, (n, C)."""
        rows = rows.to(self.bias.dtype)
        rows = rows if self.turn is None else self.turn(rows)
        values = torch.addmm(self.bias, rows, self.weight, out=buffers[1])
        if self.encoding is not None and self.embedded is not None:
            values.addmm_(self.encoding.write(rows, buffers[0]), self.embedded)
        for k, (before, after) in enumerate(pairwise(buffers[1:])):
            hidden = _activate(self.activations[k], before)
            hidden = self._separate(hidden) if k == 0 else hidden
            values = torch.baddbmm(self.biases[k], hidden, self.weights[k], out=after)
        for logits, share in zip(values if self.weights else self._separate(values), self.shares, strict=True):
            total.add_(logits, alpha=share)

    def _separate(self, values: Tensor) -> Tensor:
        """The outputs of the first layers, by perceptron."""
        return values.unflatten(1, (len(self.shares), -1)).transpose(0, 1)


class MeanPerceptron:
    """The weighted mean of the logits of perceptrons."""

    def __init__(self, perceptrons: Sequence[Perceptron], shares: Sequence[float]) -> None:
        self.n_classes = len(perceptrons[0].linears[-1].weight)
        groups: list[list[int]] = []
        for k, perceptron in enumerate(perceptrons):
            alike = (group for group in groups if perceptron.like(perceptrons[group[0]]))
            if (group := next(alike, None)) is None:
                groups.append([k])
            else:
                group.append(k)
        total = sum(shares)
        self.stacks = [Stack([perceptrons[k] for k in group], [shares[k] / total for k in group]) for group in groups]

    @classmethod
    def of(cls, modules: Sequence[nn.Module | None], shares: Sequence[float]) -> MeanPerceptron | None:
        """The mean for these modules; None if one of them is not a perceptron on the CPU."""
        candidates = [None if module is None else Perceptron.of(module) for module in modules]
        perceptrons = [perceptron for perceptron in candidates if perceptron is not None]
        return cls(perceptrons, shares) if perceptrons and len(perceptrons) == len(candidates) else None

    def logits(self, rows: Tensor) -> Tensor:
        """The mean logits, (n, C), in float64."""
        total = torch.zeros(len(rows), self.n_classes, dtype=torch.float64, device="cpu")
        share_out(self._add, zip(rows.split(ROWS), total.split(ROWS), strict=True))
        return total

    @torch.no_grad()
    def _add(self, parts: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Add the logits of some rows to each of some sums."""
        buffers: list[tuple[Tensor, ...]] = []
        for rows, total in parts:
            if not buffers or len(buffers[0][0]) != len(rows):
                buffers = [stack.buffers(len(rows)) for stack in self.stacks]
            for stack, stack_buffers in zip(self.stacks, buffers, strict=True):
                stack.add(rows, total, stack_buffers)


def _flat(module: nn.Module) -> list[nn.Module]:
    """The layers of a module, including those of nested sequences."""
    return [layer for child in module for layer in _flat(child)] if type(module) is nn.Sequential else [module]


def _equal(one: nn.Module | None, other: nn.Module | None) -> bool:
    """Whether two modules have the same class and the same values."""
    if one is None or other is None:
        return one is other
    first, second = one.state_dict(), other.state_dict()
    return (
        type(one) is type(other)
        and first.keys() == second.keys()
        and all(torch.equal(first[k], second[k]) for k in first)
    )


def _activate(activation: nn.Module, values: Tensor) -> Tensor:
    """The activation, in place."""
    if isinstance(activation, nn.SiLU):
        return nn.functional.silu(values, inplace=True)
    return values.tanh_() if isinstance(activation, nn.Tanh) else values.relu_()

"""Outer steps on the members of a population that still run.

When at most half of a population runs, an outer step is computed on a half, a quarter, an eighth … of it: the smallest
one that has room for the running members. The choice depends only on which members run, so a resumed run makes the same
choice, and a traced run sees few new shapes.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from calibrant.bilevel.hypergradients import HypergradientResult
from calibrant.bilevel.optimizers import Optimizer
from calibrant.data.batch import Batch, map_tensors


def crowd_rows(active: Tensor) -> Tensor | None:
    """The members to compute, in order. None means all of them."""
    running, size = int(active.sum()), len(active)
    while 0 < running <= size // 2:
        size //= 2
    if size == len(active):
        return None
    return torch.argsort((~active).int(), stable=True)[:size].sort().values


class Crowd:
    """The members ``rows`` of a population of ``members``: takes their values out of tensors and puts them back."""

    def __init__(self, rows: Tensor, members: int, device: torch.device) -> None:
        self.chosen, self.rows, self.members = rows, rows.to(device), members
        self._last: dict[int, tuple[Batch, Batch]] = {}

    def take(self, tree: Any) -> Any:
        """The rows of every tensor."""
        return map_tensors(lambda t: t[self.rows.to(t.device)], tree)

    def batch(self, whole: Batch, axes: Batch) -> Batch:
        """The members' part of a batch. For the same batch it returns the same object again."""
        last = self._last.get(id(axes))
        if last is None or last[0] is not whole:
            cut = pytree.tree_map(
                lambda leaf, axis: leaf if axis is None else leaf[self.rows.to(leaf.device)], whole, axes
            )
            last = self._last[id(axes)] = whole, cut
        return last[1]

    def optimizer(self, value: Any) -> Any:
        """An optimiser with the values of these members in tensors that have one value per member."""
        if isinstance(value, Tensor):
            return value[self.rows.to(value.device)] if value.shape[:1] == (self.members,) else value
        if isinstance(value, tuple):
            return tuple(map(self.optimizer, value))
        if isinstance(value, Optimizer):
            twin = copy.copy(value)
            for name, part in vars(value).items():
                scheduled = name == "learning_rate" and callable(part)
                narrow = (lambda step, rate=part: self.optimizer(rate(step))) if scheduled else self.optimizer(part)
                object.__setattr__(twin, name, narrow)  # the class is frozen, and its values are already checked
            return twin
        return value

    def spread(self, part: Any, whole: Any) -> Any:
        """A copy of ``whole`` with ``part`` in the rows of these members."""
        return pytree.tree_map(
            lambda p, w: w.index_copy(0, self.rows.to(w.device), p) if isinstance(p, Tensor) else p, part, whole
        )

    def losses(self, parts: list[Tensor]) -> list[Tensor]:
        """Losses of all members, with NaN for those that were not computed."""
        return [self.spread(loss, loss.new_full((self.members,), float("nan"))) for loss in parts]

    def result(self, part: HypergradientResult, start: Any) -> HypergradientResult:
        """A result for all members. The others have a hypergradient of zero and the state of the start."""
        loss, gradient = part.loss, part.gradient
        if gradient is not None:
            gradient = self.spread(gradient, gradient.new_zeros(self.members, gradient.shape[-1]))
        loss = None if loss is None else self.losses([loss])[0]
        return HypergradientResult(
            loss, gradient, self.losses(part.inner_losses), self.spread(part.state, start), part.details
        )

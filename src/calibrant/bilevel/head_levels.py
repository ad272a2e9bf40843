"""Levels of the head: losses as functions of the last layer's parameters, for known features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from calibrant.bilevel.dynamics import State
from calibrant.bilevel.level import Level, seeded
from calibrant.data.batch import Batch, Tensors

if TYPE_CHECKING:
    from calibrant.bilevel.population import Population
    from calibrant.bilevel.problem import Bilevel
    from calibrant.bilevel.tracing import Trainer


class Seen(NamedTuple):
    """The result of a pass through the body: the features of each call of the network, and the buffers after it."""

    features: list[Tensor]
    buffers: Tensors


class HeadLevels:
    """The losses of a problem as functions of the head's parameters ``w``.

    For known features ``h``, ``L(w, φ) = inner_loss(head_w(h), φ)`` costs a small part of the network. If there is a
    ``trainer``, it runs the body and uses the same pass for the next training step.
    """

    def __init__(self, problem: Bilevel | Population, trainer: Trainer | None = None) -> None:
        self.problem, self.trainer = problem, trainer
        self.stretch = problem.stretch

    def see(self, state: State, phi: Tensor, batch: Batch) -> Seen:
        """The features of a training batch at ``state``."""
        if self.trainer is not None:
            return Seen(self.trainer.begin(state, phi, batch), {})
        with torch.no_grad(), seeded(batch.seed, state.params):
            return Seen(*self.problem.inner_features(state.params, state.buffers, phi, batch))

    def inner(self, state: State, features: Sequence[Tensor]) -> Level:
        """The training loss as a level in ``w``, with ``fn(w, {}, φ, batch)``."""
        problem, params = self.problem, state.params

        def loss(w: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
            return problem.inner_of_head(w, params, tuple(features), phi, batch), {}

        return Level(loss, detaches=problem.detaches)

    def outer(self, state: State, seen: Seen | None, phi: Tensor, batch: Batch) -> Level:
        """The outer loss as a level in ``w``, with the buffers of ``seen`` if it is given, else those of ``state``."""
        problem, params = self.problem, state.params
        if self.trainer is not None:
            if seen is None:
                self.trainer.load(state)
            features = self.trainer.outer_features(phi, batch, problem.outer_mode == "train")
        else:
            buffers = state.buffers if seen is None else seen.buffers
            with torch.no_grad(), seeded(batch.seed, params):
                features, _ = problem.outer_features(params, buffers, phi, batch)
        kept = tuple(features)

        def loss(w: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
            return problem.outer_of_head(w, params, kept, phi, batch), {}

        return Level(loss)

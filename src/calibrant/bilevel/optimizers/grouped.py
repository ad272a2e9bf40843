"""Several optimisers, each for its own part of φ."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from calibrant.bilevel.optimizers.base import LearningRate, Linearization, Moments, Optimizer


@dataclass(frozen=True)
class GroupedOptimizer(Optimizer):
    """Several optimisers, each for its own part of φ: for example, gradient descent for weights and Adam for penalties.

    It serves the outer level only, because its update has no derivative.

    Parameters
    ----------
    parts : sequence of (length, Optimizer)
        The parts in the order of the vector. The lengths must add up to its size.
    learning_rate, weight_decay, decay_on, clip_norm, decays
        Not used: each optimiser in ``parts`` has its own.
    """

    learning_rate: LearningRate = 0.0
    parts: tuple[tuple[int, Optimizer], ...] = field(default=(), kw_only=True)

    def init(self, params: Tensor) -> Moments:
        return tuple(m for opt, p in self._split(params) for m in opt.init(p))

    def update(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> tuple[Tensor, Moments]:
        grads = grad.split([n for n, _ in self.parts], dim=-1)
        rest = moments
        after: list[Tensor] = []
        fresh: list[Tensor] = []
        for (opt, p), g in zip(self._split(params), grads, strict=True):
            count = len(opt.init(p[..., :0]))
            own, rest = rest[:count], rest[count:]
            q, new = opt.update(p, own, g, step)
            after.append(q)
            fresh.extend(new)
        return torch.cat(after, -1), tuple(fresh)

    def pull(self, at: Linearization, d_params: Tensor, d_moments: Moments) -> tuple[Tensor, Moments, Tensor]:
        raise self._no_derivative()

    def push(self, at: Linearization, t_params: Tensor, t_moments: Moments, t_grad: Tensor) -> tuple[Tensor, Moments]:
        raise self._no_derivative()

    def _no_derivative(self) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no derivative of its update, so hypergradients cannot pass through it. Use "
            "SGD, Adam or AdamW as inner optimiser."
        )

    def _split(self, params: Tensor) -> list[tuple[Optimizer, Tensor]]:
        lengths = [n for n, _ in self.parts]
        if sum(lengths) != params.shape[-1]:
            raise ValueError(
                f"The lengths of parts must add up to the {params.shape[-1]} variables; got a sum of {sum(lengths)}."
            )
        return list(zip([o for _, o in self.parts], params.split(lengths, dim=-1), strict=True))

"""Gradient descent with momentum, and its derivative."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from calibrant.bilevel.optimizers.base import Linearization, Moments, Optimizer, add_decay_, has_decay


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, as ``torch.optim.SGD``: momentum, Nesterov, coupled weight decay.

    With ``g̃ = g + decay·θ``: ``b' = μ·b + g̃`` and ``θ' = θ − η·b'`` (Nesterov: ``θ' = θ − η·(g̃ + μ·b')``), with the
    learning rate η. Without momentum and decay this is Eq. (7) of Sanguin et al. 2024.

    Parameters
    ----------
    learning_rate, weight_decay, decay_on, clip_norm, decays
        As in :class:`Optimizer`.
    momentum : float
        μ; 0 for plain gradient descent.
    nesterov : bool
        Use Nesterov's form of momentum.
    """

    momentum: float = field(default=0.0, kw_only=True)
    nesterov: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1); got {self.momentum}.")
        if self.nesterov and self.momentum == 0:
            raise ValueError("momentum must be above 0 for nesterov=True; got 0.")

    def init(self, params: Tensor) -> Moments:
        return (torch.zeros_like(params),) if self.momentum else ()

    def update(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> tuple[Tensor, Moments]:
        if has_decay(self.decay):
            grad = grad + self.decay * params
        if not self.momentum:
            return params - self.rate(step, params) * grad, ()
        buffer = self.momentum * moments[0] + grad
        direction = grad + self.momentum * buffer if self.nesterov else buffer
        return params - self.rate(step, params) * direction, (buffer,)

    def update_(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> None:
        rate = self.rate(step, params)
        add_decay_(grad, self.decay, params)
        direction = grad
        if self.momentum:
            buffer = moments[0].mul_(self.momentum).add_(grad)
            direction = grad.add_(buffer, alpha=self.momentum) if self.nesterov else buffer
        if isinstance(rate, Tensor):
            params.addcmul_(direction, -rate)
        else:
            params.add_(direction, alpha=-rate)

    def pull(self, at: Linearization, d_params: Tensor, d_moments: Moments) -> tuple[Tensor, Moments, Tensor]:
        d_direction = -self.rate(at.step, d_params) * d_params
        d_before: Moments = ()
        if not self.momentum:
            d_grad = d_direction
        elif self.nesterov:
            d_buffer = d_moments[0] + self.momentum * d_direction
            d_grad, d_before = d_direction + d_buffer, (self.momentum * d_buffer,)
        else:
            d_grad = d_moments[0] + d_direction
            d_before = (self.momentum * d_grad,)
        if has_decay(self.decay):
            d_params = d_params + self.decay * d_grad
        return d_params, d_before, d_grad

    def push(self, at: Linearization, t_params: Tensor, t_moments: Moments, t_grad: Tensor) -> tuple[Tensor, Moments]:
        return self.update(t_params, t_moments, t_grad, at.step)  # the update is linear, so it is its own derivative

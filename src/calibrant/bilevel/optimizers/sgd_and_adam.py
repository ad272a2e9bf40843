"""Gradient descent with momentum, Adam and AdamW, and their derivatives."""

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
    learning_rate, weight_decay, decay_on, clip_norm, groups, decays, shares
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


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015), as ``torch.optim.Adam``: coupled weight decay ``g̃ = g + decay·θ``.

    ``θ' = θ − η·m̂/(√(v̂ + eps_root) + eps)`` with the learning rate η. The derivative of the root at ``v̂ = 0`` is
    defined as zero. This is exact where a gradient is identically zero (a dead ReLU), because ``g`` and all its
    derivatives are zero there. ``eps_root`` is zero, as in ``torch.optim``. Other libraries use a positive value to
    keep the derivative finite, but then they differentiate a different optimiser.

    Parameters
    ----------
    learning_rate, weight_decay, decay_on, clip_norm, groups, decays, shares
        As in :class:`Optimizer`.
    betas : tuple of float
        Decay rates of the two moving averages, m and v.
    eps, eps_root : float
        Constants outside and inside the root.
    """

    betas: tuple[float, float] = field(default=(0.9, 0.999), kw_only=True)
    eps: float = field(default=1e-8, kw_only=True)
    eps_root: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1); got {self.betas}.")
        if not (self.eps > 0 and self.eps_root >= 0):
            raise ValueError(
                f"eps must be positive and eps_root at least 0; got eps={self.eps} and eps_root={self.eps_root}."
            )

    def init(self, params: Tensor) -> Moments:
        return torch.zeros_like(params), torch.zeros_like(params)

    def update(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> tuple[Tensor, Moments]:
        b1, b2 = self.betas
        if has_decay(coupled := self._coupled_decay()):
            grad = grad + coupled * params
        first = torch.lerp(moments[0], grad, 1 - b1)
        second = (b2 * moments[1]).addcmul_(grad, grad, value=1 - b2)
        rate = self.rate(step, params)
        start = self._shrink(params, rate)
        denominator = self._root(second, step) + self.eps  # not in place: autograd needs the root
        if isinstance(rate, Tensor):
            return start - rate / (1 - b1**step) * (first / denominator), (first, second)
        return torch.addcdiv(start, first, denominator, value=-rate / (1 - b1**step)), (first, second)

    def update_(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> None:
        rate, (b1, b2) = self.rate(step, params), self.betas
        if isinstance(rate, Tensor):
            return super().update_(params, moments, grad, step)
        add_decay_(grad, self._coupled_decay(), params)
        first = moments[0].lerp_(grad, 1 - b1)
        second = moments[1].mul_(b2).addcmul_(grad, grad, value=1 - b2)
        self._shrink_(params, rate)
        params.addcdiv_(first, self._root(second, step).add_(self.eps), value=-rate / (1 - b1**step))
        return None

    def pull(self, at: Linearization, d_params: Tensor, d_moments: Moments) -> tuple[Tensor, Moments, Tensor]:
        (b1, b2), grad = self.betas, at.grad
        if has_decay(coupled := self._coupled_decay()):
            grad = grad + coupled * at.params
        by_first, by_second = self._slopes(at)
        d_first = torch.addcmul(d_moments[0], by_first, d_params)
        d_second = torch.addcmul(d_moments[1], by_second, d_params)
        d_grad = ((1 - b1) * d_first).addcmul_(grad, d_second, value=2 * (1 - b2))
        d_params = self._shrink(d_params, self.rate(at.step, d_params))
        if has_decay(coupled):
            d_params = d_params + coupled * d_grad
        return d_params, (b1 * d_first, b2 * d_second), d_grad

    def _slopes(self, at: Linearization) -> tuple[Tensor, Tensor]:
        """∂θ'/∂m' and ∂θ'/∂v'. The second is zero where the root is zero."""
        first, second = at.new_moments
        b1, b2 = self.betas
        root = self._root(second, at.step)
        inverse = (root + self.eps).reciprocal_()
        by_first = inverse * (-self.rate(at.step, root) / (1 - b1**at.step))
        # ∂/∂v' of 1/(√(v'/c₂ + ρ) + ε) is −1/(√… + ε)² · 1/(2 c₂ √…); a root of zero means a gradient of zero
        by_second = (by_first * first).mul_(inverse).div_(root).mul_(-0.5 / (1 - b2**at.step))
        return by_first, torch.where(root > 0, by_second, 0.0)

    def _root(self, second: Tensor, step: int) -> Tensor:
        scaled = second / (1 - self.betas[1] ** step)
        return (scaled + self.eps_root if self.eps_root else scaled).sqrt_()

    def _coupled_decay(self) -> float | Tensor:
        return self.decay

    def _shrink(self, params: Tensor, rate: float | Tensor) -> Tensor:
        return params

    def _shrink_(self, params: Tensor, rate: float) -> None:
        """Apply decoupled weight decay in place; plain Adam has none."""


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled decay ``θ ← (1 − η·decay)·θ`` (Loshchilov & Hutter 2019), as ``torch.optim.AdamW``."""

    weight_decay: float = field(default=1e-2, kw_only=True)

    def _coupled_decay(self) -> float | Tensor:
        return 0.0

    def _shrink(self, params: Tensor, rate: float | Tensor) -> Tensor:
        return params * (1 - rate * self.decay) if has_decay(self.decay) else params

    def _shrink_(self, params: Tensor, rate: float) -> None:
        if has_decay(self.decay):
            params.mul_(1 - rate * self.decay)

    def stationary_decay(self) -> float | Tensor:
        if self.weight_decay:
            raise ValueError(
                "The implicit hypergradient needs a stationarity condition ∇L + decay·θ = 0, and AdamW's decoupled "
                "weight decay has none. Use Adam, or add an L2 penalty to the inner loss."
            )
        return 0.0

"""Functional optimisers: the update as a pure map, and its exact linearisation.

An optimiser here is a value (its hyperparameters) with three pure methods::

    moments            = opt.init(params)
    params', moments'  = opt.update(params, moments, grad, step)
    opt.update_(...)   : the same update in place, for training that is not differentiated
    opt.pull(...)      : the transpose of that update, for reverse sweeps
    opt.push(...)      : the update's derivative along a tangent, for forward sweeps

Everything is elementwise over the last axis, so a leading population axis changes nothing, and ``lr`` may be a number,
a schedule ``step -> number``, or a tensor with one value per member. In float64 the trajectories are those of
``torch.optim`` (tests hold them together to 1e-8 over 200 steps).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor

Moments = tuple[Tensor, ...]
LearningRate = float | Tensor | Callable[[int], float | Tensor]


def check_rate(name: str, value: float | Tensor) -> None:
    """Refuse rates that are negative, infinite or NaN."""
    rates = torch.as_tensor(value)
    if not bool(((rates >= 0) & rates.isfinite()).all()):
        raise ValueError(f"{name} must be a finite number that is not negative; got {value}.")


@dataclass(frozen=True)
class Optimizer:
    """What SGD, Adam and AdamW share: the learning rate and the place of weight decay.

    ``decay_on="weights"`` spares biases and normalisation layers: only matrices and kernels decay.
    """

    lr: LearningRate
    weight_decay: float = field(default=0.0, kw_only=True)
    decay_on: Literal["all", "weights"] = field(default="all", kw_only=True)
    decays: Tensor | None = field(default=None, kw_only=True, repr=False, compare=False)
    """The decay of each parameter, for ``decay_on="weights"``; :meth:`bound` fills it in."""

    def __post_init__(self) -> None:
        if not callable(self.lr):
            check_rate("lr", self.lr)
        check_rate("weight_decay", self.weight_decay)
        if self.decay_on not in ("all", "weights"):
            raise ValueError(f"decay_on must be 'all' or 'weights'; got {self.decay_on!r}.")

    def bound(self, weights: Callable[[], Tensor]) -> Self:
        """The optimiser for one network; ``weights()`` marks the entries of matrices and kernels by 1, others by 0."""
        if self.decay_on == "all" or not self.weight_decay:
            return self
        return replace(self, decays=self.weight_decay * weights())

    def on(self, stretch: slice) -> Self:
        """The optimiser for a stretch of the parameter vector."""
        return self if self.decays is None else replace(self, decays=self.decays[stretch])

    @property
    def decay(self) -> float | Tensor:
        """The weight decay: one number, or one for each parameter."""
        if self.decay_on == "all" or not self.weight_decay:
            return self.weight_decay
        if self.decays is None:
            raise ValueError("decay_on='weights' needs to know the network: call optimizer.bound(view.weight_mask).")
        return self.decays

    def rate(self, step: int, like: Tensor) -> float | Tensor:
        """The learning rate of step 1, 2, …; one per member comes as a column that broadcasts over parameters.

        A tensor takes the dtype and device of ``like``: a float64 rate must not turn float32 parameters into float64.
        """
        lr = self.lr(step) if callable(self.lr) else self.lr
        if not isinstance(lr, Tensor):
            return lr
        return lr.to(like)[..., None] if lr.dim() > 0 else lr.to(like)

    def init(self, params: Tensor) -> Moments:
        """The moments before the first step."""
        raise NotImplementedError

    def update(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> tuple[Tensor, Moments]:
        """One step; ``step`` counts from 1."""
        raise NotImplementedError

    def update_(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> None:
        """One step in place. ``grad`` may be overwritten."""
        new, after = self.update(params, moments, grad, step)
        params.copy_(new)
        for old, fresh in zip(moments, after, strict=True):
            old.copy_(fresh)

    def pull(self, at: Linearization, d_params: Tensor, d_moments: Moments) -> tuple[Tensor, Moments, Tensor]:
        """Adjoints of ``(params, moments, grad)`` from those of ``(params', moments')``."""
        raise self._no_derivative()

    def push(self, at: Linearization, t_params: Tensor, t_moments: Moments, t_grad: Tensor) -> tuple[Tensor, Moments]:
        """Tangents of ``(params', moments')`` from those of ``(params, moments, grad)``."""
        raise self._no_derivative()

    def _no_derivative(self) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no derivative of its update, so no hypergradient passes through it: use SGD, "
            "Adam or AdamW at the inner level."
        )

    def stationary_decay(self) -> float | Tensor:
        """The weight decay that enters the condition ``∇L + decay·θ = 0`` which the optimiser's fixed points meet."""
        return self.decay


def _add_decay_(grad: Tensor, decay: float | Tensor, params: Tensor) -> None:
    """``grad += decay·params``."""
    if isinstance(decay, Tensor):
        grad.addcmul_(decay, params)
    elif decay:
        grad.add_(params, alpha=decay)


def _has(decay: float | Tensor) -> bool:
    """Whether there is any weight decay to apply."""
    return isinstance(decay, Tensor) or decay != 0


@dataclass(frozen=True)
class Linearization:
    """Where an update is linearised: what went in, and the moments that came out."""

    params: Tensor
    moments: Moments
    new_moments: Moments
    grad: Tensor
    step: int


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, as ``torch.optim.SGD``: momentum, Nesterov, coupled weight decay.

    With ``g̃ = g + decay·θ``: ``b' = μ·b + g̃`` and ``θ' = θ − lr·b'`` (Nesterov: ``θ' = θ − lr·(g̃ + μ·b')``).
    Without momentum and decay this is Eq. (7) of Sanguin et al. 2024.
    """

    momentum: float = field(default=0.0, kw_only=True)
    nesterov: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1); got {self.momentum}.")
        if self.nesterov and self.momentum == 0:
            raise ValueError("Nesterov's method needs momentum > 0.")

    def init(self, params: Tensor) -> Moments:
        return (torch.zeros_like(params),) if self.momentum else ()

    def update(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> tuple[Tensor, Moments]:
        if _has(self.decay):
            grad = grad + self.decay * params
        if not self.momentum:
            return params - self.rate(step, params) * grad, ()
        buffer = self.momentum * moments[0] + grad
        direction = grad + self.momentum * buffer if self.nesterov else buffer
        return params - self.rate(step, params) * direction, (buffer,)

    def update_(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> None:
        rate = self.rate(step, params)
        _add_decay_(grad, self.decay, params)
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
        if _has(self.decay):
            d_params = d_params + self.decay * d_grad
        return d_params, d_before, d_grad

    def push(self, at: Linearization, t_params: Tensor, t_moments: Moments, t_grad: Tensor) -> tuple[Tensor, Moments]:
        return self.update(t_params, t_moments, t_grad, at.step)  # the update is linear


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015), as ``torch.optim.Adam``: coupled weight decay ``g̃ = g + decay·θ``.

    ``θ' = θ − lr·m̂/(√(v̂ + eps_root) + eps)``. The derivative of the root at ``v̂ = 0`` is taken as zero, which is exact
    where a gradient vanishes identically (dead ReLU): there ``g`` and all its derivatives are zero. ``eps_root`` is
    zero, as in ``torch.optim``; other libraries set it to keep their derivative finite, and thereby differentiate
    another optimiser.
    """

    betas: tuple[float, float] = field(default=(0.9, 0.999), kw_only=True)
    eps: float = field(default=1e-8, kw_only=True)
    eps_root: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise ValueError(f"Both betas must lie in [0, 1); got {self.betas}.")
        if not (self.eps > 0 and self.eps_root >= 0):
            raise ValueError(f"eps must be positive and eps_root not negative; got {self.eps} and {self.eps_root}.")

    def init(self, params: Tensor) -> Moments:
        return torch.zeros_like(params), torch.zeros_like(params)

    def update(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> tuple[Tensor, Moments]:
        b1, b2 = self.betas
        if _has(coupled := self._coupled_decay()):
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
        _add_decay_(grad, self._coupled_decay(), params)
        first = moments[0].lerp_(grad, 1 - b1)
        second = moments[1].mul_(b2).addcmul_(grad, grad, value=1 - b2)
        self._shrink_(params, rate)
        params.addcdiv_(first, self._root(second, step).add_(self.eps), value=-rate / (1 - b1**step))
        return None

    def pull(self, at: Linearization, d_params: Tensor, d_moments: Moments) -> tuple[Tensor, Moments, Tensor]:
        (b1, b2), grad = self.betas, self._decayed(at)
        by_first, by_second = self._slopes(at)
        d_first = torch.addcmul(d_moments[0], by_first, d_params)
        d_second = torch.addcmul(d_moments[1], by_second, d_params)
        d_grad = ((1 - b1) * d_first).addcmul_(grad, d_second, value=2 * (1 - b2))
        d_params = self._shrink(d_params, self.rate(at.step, d_params))
        if _has(coupled := self._coupled_decay()):
            d_params = d_params + coupled * d_grad
        return d_params, (b1 * d_first, b2 * d_second), d_grad

    def push(self, at: Linearization, t_params: Tensor, t_moments: Moments, t_grad: Tensor) -> tuple[Tensor, Moments]:
        (b1, b2), grad = self.betas, self._decayed(at)
        by_first, by_second = self._slopes(at)
        if _has(coupled := self._coupled_decay()):
            t_grad = t_grad + coupled * t_params
        t_first = b1 * t_moments[0] + (1 - b1) * t_grad
        t_second = b2 * t_moments[1] + 2 * (1 - b2) * grad * t_grad
        t_params = self._shrink(t_params, self.rate(at.step, t_params)) + by_first * t_first + by_second * t_second
        return t_params, (t_first, t_second)

    def _slopes(self, at: Linearization) -> tuple[Tensor, Tensor]:
        """∂θ'/∂m' and ∂θ'/∂v', the latter guarded at the root's zero."""
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

    def _decayed(self, at: Linearization) -> Tensor:
        coupled = self._coupled_decay()
        return at.grad + coupled * at.params if _has(coupled) else at.grad

    def _coupled_decay(self) -> float | Tensor:
        return self.decay

    def _shrink(self, params: Tensor, rate: float | Tensor) -> Tensor:
        return params

    def _shrink_(self, params: Tensor, rate: float) -> None:
        """The same in place."""


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled decay ``θ ← (1 − lr·decay)·θ`` (Loshchilov & Hutter 2019), as ``torch.optim.AdamW``."""

    weight_decay: float = field(default=1e-2, kw_only=True)

    def _coupled_decay(self) -> float | Tensor:
        return 0.0

    def _shrink(self, params: Tensor, rate: float | Tensor) -> Tensor:
        return params * (1 - rate * self.decay) if _has(self.decay) else params

    def _shrink_(self, params: Tensor, rate: float) -> None:
        if _has(self.decay):
            params.mul_(1 - rate * self.decay)

    def stationary_decay(self) -> float | Tensor:
        if self.weight_decay:
            raise ValueError(
                "AdamW's decoupled weight decay has no stationarity condition of the form ∇L + decay·θ = 0, which the "
                "implicit hypergradient needs. Use Adam, or put an L2 penalty into the inner loss."
            )
        return 0.0


@dataclass(frozen=True)
class Grouped(Optimizer):
    """Several optimisers, each on its own stretch of φ (weights by descent, penalties by Adam, say).

    For the outer level: its update is not differentiated.

    Parameters
    ----------
    parts : sequence of (length, Optimizer)
        In the order of the vector; lengths must add up to its size.
    """

    lr: LearningRate = 0.0
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

    def _split(self, params: Tensor) -> list[tuple[Optimizer, Tensor]]:
        lengths = [n for n, _ in self.parts]
        if sum(lengths) != params.shape[-1]:
            raise ValueError(
                f"The groups cover {sum(lengths)} of {params.shape[-1]} variables; cover each exactly once."
            )
        return list(zip([o for _, o in self.parts], params.split(lengths, dim=-1), strict=True))

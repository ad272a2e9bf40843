"""The interface of optimisers, what all of them share, and several optimisers for the parts of φ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor

from calibrant.base.settings import check_choice, check_number

Moments = tuple[Tensor, ...]
LearningRate = float | Tensor | Callable[[int], float | Tensor]


def check_rate(name: str, value: float | Tensor) -> None:
    """Raise an error if a rate is negative, infinite or NaN."""
    rates = torch.as_tensor(check_number(name, value) if isinstance(value, str) else value, device="cpu")
    if not bool(((rates >= 0) & rates.isfinite()).all()):
        raise ValueError(f"{name} must be finite and at least 0; got {value}.")


@dataclass(frozen=True)
class Optimizer:
    """Base class of the optimisers: learning rate and weight decay.

    Parameters
    ----------
    learning_rate : float, tensor or callable
        A number, a tensor with one value per population member, or a schedule ``step -> number``.
    weight_decay : float
        The strength of the weight decay.
    decay_on : {"all", "weights"}
        ``"weights"`` applies weight decay to matrices and kernels only, not to biases, normalisation layers and
        embeddings.
    clip_norm : float, optional
        The largest norm of a gradient; longer ones are shortened to it. Hypergradients that pass through training steps
        do not allow it.
    groups : tuple of (name, share, decay)
        Settings of single parameters of the network, for plain training: their names, the share of the learning rate,
        and the weight decay. Parameters without an entry are not trained. ``()`` treats all alike.
    decays, shares : Tensor, optional
        Set by :meth:`bound`; leave them out.
    """

    learning_rate: LearningRate
    weight_decay: float = field(default=0.0, kw_only=True)
    decay_on: Literal["all", "weights"] = field(default="all", kw_only=True)
    clip_norm: float | None = field(default=None, kw_only=True)
    decays: Tensor | None = field(default=None, kw_only=True, repr=False, compare=False)
    """The decay of each entry for ``groups`` and ``decay_on="weights"``. :meth:`bound` sets it."""
    groups: tuple[tuple[str, float, float], ...] = field(default=(), kw_only=True)
    shares: Tensor | None = field(default=None, kw_only=True, repr=False, compare=False)
    """The share of the learning rate of each entry, for ``groups``. :meth:`bound` sets it."""

    def __post_init__(self) -> None:
        if not callable(self.learning_rate):
            check_rate("learning_rate", self.learning_rate)
        check_rate("weight_decay", self.weight_decay)
        check_choice("decay_on", self.decay_on, ("all", "weights"))
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be positive or None; got {self.clip_norm}.")

    def bound(self, weights: Callable[[], Tensor], spread: Callable[[dict[str, float]], Tensor]) -> Self:
        """The optimiser for one network.

        ``weights()`` is 1 for entries of matrices and kernels, and 0 for others. ``spread(values)`` is a vector with a
        value for each entry, from one for each named parameter and 0 for the others.
        """
        if self.groups:
            shares = spread({name: share for name, share, _ in self.groups})
            return replace(self, shares=shares, decays=spread({name: decay for name, _, decay in self.groups}))
        if self.decay_on == "all" or not self.weight_decay:
            return self
        return replace(self, decays=self.weight_decay * weights())

    def on(self, head_slice: slice) -> Self:
        """The optimiser for a slice of the parameter vector."""
        return self if self.decays is None else replace(self, decays=self.decays[head_slice])

    @property
    def decay(self) -> float | Tensor:
        """The weight decay: one number, or one for each parameter."""
        if not self.groups and (self.decay_on == "all" or not self.weight_decay):
            return self.weight_decay
        if self.decays is None:
            raise ValueError(
                "decay_on='weights' and groups need the network: call optimizer.bound(view.weight_mask, view.spread)."
            )
        return self.decays

    def learning_rate_at(self, step: int) -> float | Tensor:
        """The learning rate at step 1, 2, …"""
        return self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate

    def rate(self, step: int, like: Tensor) -> float | Tensor:
        """The learning rate at ``step`` in a form that multiplies a parameter vector.

        A tensor with one rate per member becomes a column. It takes the dtype and device of ``like``, because a
        float64 rate would turn float32 parameters into float64.
        """
        rate = self.learning_rate_at(step)
        if not isinstance(rate, Tensor):
            return rate
        return rate.to(like)[..., None] if rate.dim() > 0 else rate.to(like)

    def clip_(self, grad: Tensor) -> Tensor:
        """Shorten a gradient in place to the norm ``clip_norm``; one gradient for each member of a population."""
        if self.clip_norm is not None:
            grad *= self.clip_norm / grad.norm(dim=-1, keepdim=True).clamp_min(self.clip_norm)
        return grad

    def init(self, params: Tensor) -> Moments:
        """The moments before the first step."""
        raise NotImplementedError

    def update(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> tuple[Tensor, Moments]:
        """Parameters and moments after one step. ``step`` counts from 1."""
        raise NotImplementedError

    def step_(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> None:
        """:meth:`update_`, with the shares of the learning rate. It may overwrite ``grad``."""
        before = None if self.shares is None else params.clone()
        self.update_(params, moments, grad, step)
        if before is not None and self.shares is not None:
            params.copy_(torch.lerp(before, params, self.shares))  # a step is proportional to its learning rate

    def update_(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> None:
        """Take one step in place. It may overwrite ``grad``."""
        new, after = self.update(params, moments, grad, step)
        params.copy_(new)
        for old, fresh in zip(moments, after, strict=True):
            old.copy_(fresh)

    def pull(self, at: Linearization, d_params: Tensor, d_moments: Moments) -> tuple[Tensor, Moments, Tensor]:
        """Adjoints of ``(params, moments, grad)`` from those of ``(params', moments')``.

        By default autograd differentiates :meth:`update`.
        """
        step: Any = partial(self.update, step=at.step)
        return torch.func.vjp(step, at.params, at.moments, at.grad)[1]((d_params, d_moments))

    def stationary_decay(self) -> float | Tensor:
        """The decay in the condition ``∇L + decay·θ = 0``, which holds at the optimiser's fixed points."""
        return self.decay


@dataclass(frozen=True)
class Linearization:
    """The point at which an update is linearised: its inputs, and the moments after it."""

    params: Tensor
    moments: Moments
    new_moments: Moments
    grad: Tensor
    step: int


def add_decay_(grad: Tensor, decay: float | Tensor, params: Tensor) -> None:
    """``grad += decay·params``."""
    if isinstance(decay, Tensor):
        grad.addcmul_(decay, params)
    elif decay:
        grad.add_(params, alpha=decay)


def has_decay(decay: float | Tensor) -> bool:
    """Whether there is weight decay to apply."""
    return isinstance(decay, Tensor) or decay != 0


@dataclass(frozen=True)
class GroupedOptimizer(Optimizer):
    """Several optimisers, each for its own part of φ: for example, gradient descent for weights and Adam for penalties.

    It serves the outer level.

    Parameters
    ----------
    parts : sequence of (length, Optimizer)
        The parts in the order of the vector. The lengths must add up to its size.
    learning_rate, weight_decay, decay_on, clip_norm, groups, decays, shares
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
            part_moments, rest = rest[:count], rest[count:]
            q, new = opt.update(p, part_moments, g, step)
            after.append(q)
            fresh.extend(new)
        return torch.cat(after, -1), tuple(fresh)

    def _split(self, params: Tensor) -> list[tuple[Optimizer, Tensor]]:
        lengths = [n for n, _ in self.parts]
        if sum(lengths) != params.shape[-1]:
            raise ValueError(
                f"The lengths of parts must add up to the {params.shape[-1]} variables; got a sum of {sum(lengths)}."
            )
        return list(zip([o for _, o in self.parts], params.split(lengths, dim=-1), strict=True))

"""Cheap hypergradients: one look-ahead step, the direct gradient, and feedback without a gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.bilevel.gradients.dynamics import Dynamics, State
from calibrant.bilevel.gradients.head import BodyPass
from calibrant.bilevel.gradients.hypergradients import (
    Hypergradient,
    HypergradientInput,
    HypergradientResult,
    Order,
    Scope,
    check_choices,
    outer_gradient,
    warn_without_network,
)
from calibrant.bilevel.optimizers import SGD, Linearization


@dataclass(frozen=True)
class OneStep(Hypergradient):
    """The hypergradient through one look-ahead step.

    It differentiates ``F(θ + m·(Φ(θ, φ) − θ))``. Φ is one step of the inner optimiser from its present state, or the
    plain descent step ``θ − learning_rate·∇L`` if ``learning_rate`` is given. The mask m is 1 for the parameters in
    ``scope`` and 0 for the others.

    Parameters
    ----------
    steps : int
        The number of real training steps per outer step.
    scope : {"all", "head"}
        ``"head"`` moves the last layer only, as the public meta-calibration code does. The body then runs once for the
        look-ahead step and the first real step, and the outer batch runs through it without a graph.
    learning_rate : float, optional
        The rate of a plain descent step as look-ahead.
    first : {"outer", "inner"}
        ``"outer"`` looks ahead on the next batch, moves φ, and then trains; the first training step uses that same
        batch. ``"inner"`` trains with the present φ, differentiates the last training step, and evaluates F after it
        (Section 3.3 of the second paper).
    """

    scope: Scope = "all"
    learning_rate: float | None = field(default=None, kw_only=True)
    first: Order = field(default="outer", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self.scope, self.first)
        if self.learning_rate is not None and not self.lookahead:
            raise ValueError(
                "learning_rate must be None with first='inner', where a real step is differentiated; got "
                f"{self.learning_rate}."
            )

    @property
    def lookahead(self) -> bool:
        return self.first == "outer"

    @property
    def of_head(self) -> bool:
        return self.scope == "head"

    def __call__(self, inputs: HypergradientInput, start: State, phi: Tensor) -> HypergradientResult:
        state, losses = start, list[Tensor]()
        if not self.lookahead:
            state, losses = self.train(inputs, start, phi, self.steps - 1)
        return (self._of_head if self.of_head else self._of_all)(inputs, state, losses, phi)

    def _of_all(
        self, inputs: HypergradientInput, start: State, losses: list[Tensor], phi: Tensor
    ) -> HypergradientResult:
        dynamics, at = inputs.dynamics, start
        if self.learning_rate is not None:
            dynamics, at = Dynamics(dynamics.derivatives, SGD(self.learning_rate)), start._replace(moments=())
        ahead, loss, recorded = dynamics.record(at, phi, inputs.draws(start.step))
        outer, adjoint = outer_gradient(inputs, ahead, phi)
        _, share = dynamics.pull(recorded, adjoint, params=False)
        return HypergradientResult(outer.loss, outer.phi + share, [*losses, loss], start if self.lookahead else ahead)

    def _of_head(
        self, inputs: HypergradientInput, start: State, losses: list[Tensor], phi: Tensor
    ) -> HypergradientResult:
        head, batch = inputs.head, inputs.draws(start.step)
        at = head.at
        optimizer = SGD(self.learning_rate) if self.learning_rate is not None else inputs.dynamics.optimizer.on(at)
        w = start.params[..., at].clone()  # training in place must not change what is differentiated
        moments = () if self.learning_rate is not None else tuple(m[..., at].clone() for m in start.moments)
        seen: BodyPass | None = head.see(start, batch)
        assert seen is not None
        linearized = head.inner(start, seen.features).linearize(w, {}, phi, batch)
        with torch.no_grad():
            ahead, after = optimizer.update(w, moments, linearized.grad, start.step + 1)
        state = start
        if not self.lookahead:
            state, more = self.train(inputs, start, phi, 1)
            losses, seen, ahead = [*losses, *more], None, state.params[..., at]
        outer = head.outer(state, ahead, phi, inputs.required_outer_batch, seen)
        warn_without_network(outer)
        zero = tuple(torch.zeros_like(m) for m in after)
        with torch.no_grad():
            line = Linearization(w, moments, after, linearized.grad, start.step + 1)
            slope = optimizer.pull(line, outer.params, zero)[2]
        share = linearized.pull(slope, {}, params=False).phi
        return HypergradientResult(outer.loss, outer.phi + share, losses or [linearized.loss], state)


@dataclass(frozen=True)
class Direct(Hypergradient):
    """The direct gradient ``∂F/∂φ``, with θ held fixed.

    It is exact if training does not depend on φ, so that ``dθ/dφ = 0``. An example is
    :class:`calibrant.bilevel.LogitMap`, which maps the logits of the trained network. The outer batch runs through the
    network without a graph.
    """

    direct: ClassVar[bool] = True

    def __call__(self, inputs: HypergradientInput, start: State, phi: Tensor) -> HypergradientResult:
        state, losses = self.train(inputs, start, phi, self.steps)
        outer = inputs.head.outer_in_phi(state, phi, inputs.required_outer_batch)
        return HypergradientResult(outer.loss, outer.phi, losses, state)


@dataclass(frozen=True)
class Feedback(Hypergradient):
    """Feedback instead of a gradient: φ moves in proportion to the outer loss, like an integral controller.

    The outer loss is a signed quantity that φ should bring to zero, such as :class:`confidence_gap_loss`, the mean
    confidence minus the accuracy on held-out data. Every entry of φ gets ``−F`` as its gradient, so ``SGD(k)`` as outer
    optimiser computes ``φ ← φ + k·F``. This is the simplest baseline for a learned φ.
    """

    def __call__(self, inputs: HypergradientInput, start: State, phi: Tensor) -> HypergradientResult:
        state, losses = self.train(inputs, start, phi, self.steps)
        value = inputs.head.outer_value(state, phi, inputs.required_outer_batch)
        return HypergradientResult(value, -value.unsqueeze(-1).expand_as(phi), losses, state)

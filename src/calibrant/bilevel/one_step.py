"""Cheap ways to move φ: one look-ahead step, the direct gradient, and feedback without a gradient."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from calibrant.bilevel.dynamics import Dynamics, State
from calibrant.bilevel.heads import Heads, Seen
from calibrant.bilevel.hypergradients import (
    Estimate,
    Hypergradient,
    Order,
    Problem,
    Scope,
    check_choices,
    outer_gradient,
)
from calibrant.bilevel.optimizers import SGD, Linearization


@dataclass(frozen=True)
class OneStep(Hypergradient):
    """One look-ahead step.

    The map: ``F(θ + scope·(Φ(θ, φ) − θ))`` with Φ one step of the inner optimiser from where it stands, or plain
    descent ``θ − lr·∇L`` when ``lr`` is given.

    Parameters
    ----------
    scope : {"all", "head"}
        ``"head"`` moves the last layer only, as the public meta-calibration code does. The body then runs once for the
        look-ahead and the first real step, and the outer batch runs through it without a graph.
    steps : int
        Real training steps to one outer step.
    lr : float, optional
    first : {"outer", "inner"}
        ``"outer"``: look ahead on the next batch, move φ, then train, the first step on that same batch. ``"inner"``:
        train with the present φ; the last step is the one that is differentiated, and F is evaluated behind it (Section
        3.3 of the second paper).
    """

    scope: Scope = "all"
    lr: float | None = field(default=None, kw_only=True)
    first: Order = field(default="outer", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self.scope, self.first)
        if self.lr is not None and not self.lookahead:
            raise ValueError("lr is the rate of a look-ahead step; with first='inner' the real step is differentiated.")

    @property
    def lookahead(self) -> bool:
        return self.first == "outer"

    @property
    def of_head(self) -> bool:
        return self.scope == "head"

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        state, losses = start, list[Tensor]()
        if not self.lookahead:
            state, losses = self.train(problem, start, phi, self.steps - 1)
        if self.of_head and problem.heads is not None:
            return self._of_head(problem, problem.heads, state, losses, phi)
        return self._of_all(problem, state, losses, phi)

    def _of_all(self, problem: Problem, start: State, losses: list[Tensor], phi: Tensor) -> Estimate:
        dynamics, at = problem.dynamics, start
        if self.lr is not None:
            dynamics, at = Dynamics(dynamics.level, SGD(self.lr)), start._replace(moments=())
        ahead, loss, recorded = dynamics.record(at, phi, problem.draws(start.step))
        real, mask = ahead, self._mask(problem, start.params)
        if mask is not None and self.lookahead:
            ahead = ahead._replace(params=torch.where(mask, ahead.params, start.params))
        outer, adjoint = outer_gradient(problem, ahead, phi)
        if mask is not None:
            adjoint = adjoint._replace(params=torch.where(mask, adjoint.params, 0.0))
        adjoint = adjoint._replace(moments=dynamics.zero(ahead).moments)
        _, share = dynamics.pull(recorded, adjoint, params=False)
        return Estimate(outer.loss, outer.phi + share, [*losses, loss], start if self.lookahead else real)

    def _of_head(self, problem: Problem, heads: Heads, start: State, losses: list[Tensor], phi: Tensor) -> Estimate:
        at, batch = heads.stretch, problem.draws(start.step)
        optimizer = SGD(self.lr) if self.lr is not None else problem.dynamics.optimizer.on(at)
        w = start.params[..., at].clone()  # training in place must not reach what is differentiated
        moments = () if self.lr is not None else tuple(m[..., at].clone() for m in start.moments)
        seen: Seen | None = heads.see(start, phi, batch)
        assert seen is not None
        here = heads.inner(start, seen.features).linearize(w, {}, phi, batch)
        with torch.no_grad():
            ahead, after = optimizer.update(w, moments, here.grad, start.step + 1)
        state = start
        if not self.lookahead:
            state, more = self.train(problem, start, phi, 1)
            losses, seen, ahead = [*losses, *more], None, state.params[..., at]
        outer = heads.outer(state, seen, phi, problem.outer_batch).gradients(ahead, {}, phi, problem.outer_batch)
        zero = tuple(torch.zeros_like(m) for m in after)
        with torch.no_grad():
            line = Linearization(w, moments, after, here.grad, start.step + 1)
            slope = optimizer.pull(line, outer.params, zero)[2]
        share = here.pull(slope, {}, params=False).phi
        return Estimate(outer.loss, outer.phi + share, losses or [here.loss], state)

    def _mask(self, problem: Problem, params: Tensor) -> Tensor | None:
        if self.scope == "all":
            return None
        if problem.stretch is None:
            raise ValueError("OneStep(scope='head') needs to know where the head stands: give Problem(stretch=…).")
        mask = torch.zeros(params.shape[-1], dtype=torch.bool, device=params.device)
        mask[problem.stretch] = True
        return mask


@dataclass(frozen=True)
class Direct(Hypergradient):
    """The direct gradient ``∂F/∂φ``, with θ held fixed.

    It is exact where training does not depend on φ, so that ``dθ/dφ = 0``: φ then describes how the trained network's
    logits are read, as :class:`calibrant.bilevel.LogitMap` does. With ``scope="head"`` the outer batch runs
    through the body without a graph; the result is the same.
    """

    scope: Scope = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self.scope, "inner")

    @property
    def direct(self) -> bool:
        return True

    @property
    def of_head(self) -> bool:
        return self.scope == "head"

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        state, losses = self.train(problem, start, phi, self.steps)
        batch = problem.outer_batch
        if problem.heads is not None:
            w = state.params[..., problem.heads.stretch]
            outer = problem.heads.outer(state, None, phi, batch).gradients(w, {}, phi, batch)
        else:
            outer = problem.outer.gradients(state.params, state.buffers, phi, batch)
        return Estimate(outer.loss, outer.phi, losses, state)


@dataclass(frozen=True)
class Feedback(Hypergradient):
    """No gradient: φ moves against the sign of the outer loss, as an integral controller does.

    The outer loss is a signed quantity that φ should bring to zero, such as :func:`confidence_gap_loss`, the mean
    confidence minus the accuracy on held-out data. Every entry of φ gets ``−F`` as its gradient, so that ``SGD(k)``
    outside is ``φ ← φ + k·F``. It is the plainest rival of a learned φ.
    """

    @property
    def of_head(self) -> bool:
        return True

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        state, losses = self.train(problem, start, phi, self.steps)
        batch = problem.outer_batch
        if problem.heads is not None:
            w = state.params[..., problem.heads.stretch]
            value, _ = problem.heads.outer(state, None, phi, batch).value(w, {}, phi, batch)
        else:
            value, _ = problem.outer.value(state.params, state.buffers, phi, batch)
        return Estimate(value, -value.unsqueeze(-1).expand_as(phi), losses, state)

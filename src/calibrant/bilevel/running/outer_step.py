"""One outer step: train, differentiate the outer loss, move φ; for all members, or for those that still run.

Outer steps on the members of a population that still run. When at most half of a population runs, an outer step is
computed on a half, a quarter, an eighth … of it: the smallest one that has room for the running members. The choice
depends only on which members run, so a resumed run makes the same choice, and a traced run sees few new shapes.

One outer step: train, differentiate the outer loss, move φ. An outer step trains for a few steps, differentiates the
outer loss through them, moves φ and projects it. A hypergradient with ``lookahead`` moves φ first and trains
afterwards.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from calibrant.bilevel.gradients import hypergradients as hg
from calibrant.bilevel.gradients.dynamics import Dynamics, State
from calibrant.bilevel.gradients.hypergradients import HypergradientResult
from calibrant.bilevel.optimizers import Moments, Optimizer
from calibrant.bilevel.problem.bilevel import Bilevel
from calibrant.bilevel.problem.population import Population
from calibrant.bilevel.running.finite import examine, sound
from calibrant.data.streams.batch import Batch, map_tensors

if TYPE_CHECKING:
    from calibrant.bilevel.running.run import Run


def active_rows(active: Tensor) -> Tensor | None:
    """The members to compute, in order. None means all of them."""
    running, size = int(active.sum()), len(active)
    while 0 < running <= size // 2:
        size //= 2
    if size == len(active):
        return None
    return torch.argsort((~active).int(), stable=True)[:size].sort().values


class ActiveMembers:
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


class StepOutcome(NamedTuple):
    """The result of an outer step.

    ``gradient`` is the hypergradient that moved φ, after averaging over tied members and clipping.
    """

    result: hg.HypergradientResult
    gradient: Tensor | None
    phi: Tensor
    moments: Moments
    state: State
    inner_losses: list[Tensor]


def outer_step(run: Run) -> None:
    """Take one outer step and update the run."""
    taken = run.step * run.present.steps
    run.ran = run.active.clone()
    if run.replay is not None:
        outcome = run.replay()
    else:
        inputs, start = _present_input(run, taken)
        outcome = compute_outcome(run, inputs, start, run.phi, run.outer_moments, run.outer_optimizer, run.step)
    run.inner_losses = torch.stack([loss.detach() for loss in outcome.inner_losses])
    run.outer_loss, run.gradient = outcome.result.loss, outcome.gradient
    if run.hypergradient.moves and run.outer_loss is None:  # φ does not move yet: a history still needs its rows
        run.outer_loss = torch.full_like(run.inner_losses[-1], math.nan)
        run.gradient = torch.zeros_like(run.phi)
    keep = examine(run, taken, outcome) & run.active
    if run.replay is not None:
        run.defer_state(partial(run.replay.trainer.hand_out, outcome.state.step))
    else:
        run.state = run.select(keep, outcome.state, run.state)
    moved = run.together(keep)
    run.phi = run.select(moved, outcome.phi, run.phi)
    run.outer_moments = run.select(moved, outcome.moments, run.outer_moments)
    run.step += 1
    run.release()


def _present_input(run: Run, taken: int) -> tuple[hg.HypergradientInput, State]:
    """What the hypergradient needs, and the state to start from: the run's state, or a fresh one with ``restart``."""
    problem, hypergradient = run.problem, run.present
    start = run.fresh_state() if run.restart else run.state
    offset = taken - start.step  # a restarted state counts its steps from 0; the data continues
    at_origin = run.restart or run.step == 0
    inputs = hg.HypergradientInput(
        run.dynamics,
        run.outer_derivatives,
        lambda step: problem.train_batch(step + offset),
        problem.val_batch(run.step) if hypergradient.moves else None,
        pull_initial(problem, run.phi) if problem.moves_start and at_origin else None,
        push_initial(problem, run.phi) if problem.moves_start and at_origin else None,
        problem.head_slice if hypergradient.of_head and not hypergradient.direct else None,
        run.heads,
        run.features,
    )
    return inputs, start


def compute_outcome(
    run: Run,
    inputs: hg.HypergradientInput,
    start: State,
    phi: Tensor,
    moments: Moments,
    optimizer: Optimizer | None,
    step: int,
) -> StepOutcome:
    """Compute an outer step from ``start`` and ``phi`` without changing the run."""
    problem, hypergradient, before = run.problem, run.present, phi
    active_members = run.active_members()
    if active_members is None:
        result = hypergradient(inputs, start, phi)
    else:
        inputs = _of_active_members(inputs, active_members, problem)
        result = active_members.result(
            hypergradient(inputs, active_members.take(start), active_members.take(phi)), start
        )
    gradient = result.gradient
    if gradient is not None and optimizer is not None:
        with torch.no_grad():
            if problem.shared_phi is not None:
                gradient = run.pool(gradient, run.active & sound(run, result))
            if run.clip_norm is not None:
                norm = gradient.norm(dim=-1, keepdim=True)
                gradient = gradient * torch.where(norm > run.clip_norm, run.clip_norm / norm, 1.0)
            phi, moments = optimizer.update(before, moments, gradient, step + 1)
            phi = problem.project(phi)
    state, inner_losses = result.state, result.inner_losses
    if hypergradient.lookahead and active_members is None:
        state, inner_losses = hypergradient.train(inputs, state, phi, hypergradient.steps)
    elif hypergradient.lookahead and active_members is not None:
        part, losses = hypergradient.train(
            inputs, active_members.take(state), active_members.take(phi), hypergradient.steps
        )
        state, inner_losses = active_members.spread(part, state), active_members.losses(losses)
    return StepOutcome(result, gradient, phi, moments, state, inner_losses)


def _of_active_members(
    inputs: hg.HypergradientInput, active_members: ActiveMembers, problem: Bilevel | Population
) -> hg.HypergradientInput:
    """The input of a hypergradient for some of the members."""
    assert isinstance(problem, Population)
    outer_batch = inputs.outer_batch
    if outer_batch is not None:
        assert problem.val is not None
        outer_batch = active_members.batch(outer_batch, problem.val.axes)
    return inputs._replace(
        dynamics=Dynamics(inputs.dynamics.derivatives, active_members.optimizer(inputs.dynamics.optimizer)),
        draws=lambda step: active_members.batch(inputs.draws(step), problem.train.axes),
        outer_batch=outer_batch,
    )


def pull_initial(problem: Bilevel | Population, phi: Tensor) -> Callable[[Tensor], Tensor]:
    """The transpose of Φ_0's derivative, ``λ ↦ (∂Φ_0/∂φ)ᵀ λ``."""

    def pull(adjoint: Tensor) -> Tensor:
        leaf = phi.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(problem.initial_params(leaf), leaf, adjoint)[0]

    return pull


def push_initial(problem: Bilevel | Population, phi: Tensor) -> Callable[[Tensor], Tensor]:
    """Φ_0's derivative, ``v ↦ (∂Φ_0/∂φ) v``."""
    return lambda tangent: torch.func.jvp(problem.initial_params, (phi,), (tangent.contiguous(),))[1]

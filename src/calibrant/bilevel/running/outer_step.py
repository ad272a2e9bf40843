"""One outer step: train for a few steps, differentiate the outer loss through them, move φ and project it.

A hypergradient with ``lookahead`` moves φ first and trains afterwards. All members of a population are computed in
every step. Those that have stopped keep their state and φ.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from calibrant.bilevel.gradients import hypergradients as hg
from calibrant.bilevel.gradients.dynamics import State
from calibrant.bilevel.gradients.loss_derivatives import seeded
from calibrant.bilevel.optimizers.base import Moments, Optimizer
from calibrant.bilevel.running.finite import examine, sound
from calibrant.bilevel.running.trainer import Trainer

if TYPE_CHECKING:
    from calibrant.bilevel.running.run import Run


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
        with seeded(run.layer_seed(taken), start.params):
            outcome = compute_outcome(run, inputs, start, run.phi, run.outer_moments, run.outer_optimizer, run.step)
    run.inner_losses = torch.stack([loss.detach() for loss in outcome.inner_losses])
    run.outer_loss, run.gradient = outcome.result.loss, outcome.gradient
    if run.hypergradient.moves and run.outer_loss is None:  # φ does not move yet: a history still needs its rows
        run.outer_loss = torch.full_like(run.inner_losses[-1], math.nan)
        run.gradient = torch.zeros_like(run.phi)
    keep = examine(run, taken, outcome) & run.active
    if isinstance(run.dynamics, Trainer) and outcome.state.params is run.dynamics.params:
        run.defer_state(run.dynamics, outcome.state.step)
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
    start = run.fresh_state() if run.restart else run.live_state
    offset = taken - start.step  # a restarted state counts its steps from 0; the data continues
    at_origin = run.restart or run.step == 0
    inputs = hg.HypergradientInput(
        run.dynamics,
        run.outer_derivatives,
        lambda step: run.train_batch(step + offset),
        problem.val_batch(run.step) if hypergradient.moves else None,
        run.head,
        problem.initial_params if problem.moves_start and at_origin else None,
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
    problem, hypergradient = run.problem, run.present
    result = hypergradient(inputs, start, phi)
    gradient = result.gradient
    if gradient is not None and optimizer is not None:
        with torch.no_grad():
            if problem.shared_phi is not None:
                gradient = run.pool(gradient, run.active & sound(run, result))
            if run.clip_norm is not None:
                norm = gradient.norm(dim=-1, keepdim=True)
                gradient = gradient * torch.where(norm > run.clip_norm, run.clip_norm / norm, 1.0)
            phi, moments = optimizer.update(phi, moments, gradient, step + 1)
            phi = problem.project(phi)
    state, inner_losses = result.state, result.inner_losses
    if hypergradient.lookahead:
        state, inner_losses = hypergradient.train(inputs, state, phi, hypergradient.steps)
    return StepOutcome(result, gradient, phi, moments, state, inner_losses)

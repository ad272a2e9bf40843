"""Checks of a problem's losses when it is built, on the first batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.bilevel import checks
from calibrant.bilevel.detached import Watch
from calibrant.bilevel.level import seeded
from calibrant.bilevel.outer_variables import OuterVariable
from calibrant.data.batch import Batch, Tensors
from calibrant.models.kernels import FusedKernels

if TYPE_CHECKING:
    from calibrant.bilevel.problem import Bilevel


def check_inner_loss(problem: Bilevel, kernels: FusedKernels) -> tuple[bool, bool]:
    """Evaluate the inner loss, so that mistakes are found early.

    Returns whether it draws random numbers, and whether it detaches anything. ``kernels`` notes which fused kernels it
    uses.
    """
    checks.check_samples(problem.variables, problem.train)
    for stream in (problem.train, problem.val):
        checks.check_augment(stream)
    batch = problem.train_batch(0)
    if isinstance(problem.variables, OuterVariable) and problem.variables.needs_index:
        batch.require_index(type(problem.variables).__name__)
    phi, softmax, detached = problem.initial_phi(), checks.SoftmaxWatch(), Watch()

    def evaluate() -> Tensor:
        with detached:
            return problem.inner(problem.start, problem.initial_buffers(), phi, batch)[0]

    with kernels.observed(), softmax:
        drawn = checks.draws_random_numbers(evaluate, level="inner", like=problem.start, autocast=problem.autocast)
    softmax.warn()
    _find_carried_buffers(problem, batch)
    problem.depends("inner")
    return drawn, detached.seen


def check_outer_loss(problem: Bilevel, batch: Batch) -> bool:
    """Evaluate the outer loss. Returns whether it draws random numbers."""
    return checks.draws_random_numbers(
        lambda: problem.outer(problem.start, problem.initial_buffers(), problem.initial_phi(), batch)[0],
        level="outer",
        like=problem.start,
        autocast=problem.autocast,
    )


def _find_carried_buffers(problem: Bilevel, batch: Batch) -> None:
    """Find the buffers that carry gradient from step to step, and warn of those that change without a graph."""
    params, phi = problem.start.clone().requires_grad_(), problem.initial_phi().requires_grad_()

    def evaluate(buffers: Tensors) -> Tensors:
        with torch.enable_grad(), seeded(0, params), checks.foreign_generators_restored():
            return problem.inner(params, buffers, phi, batch)[1]

    view, known = problem.view, problem.view.differentiable_buffers
    view.differentiable_buffers, unseen = checks.carried_buffers(evaluate, problem.initial_buffers(), known)
    if problem.outer_mode == "eval" and problem.val is not None and problem.outer_view.size:
        checks.warn_of_buffers(unseen)

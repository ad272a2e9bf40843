"""The solver: one loop for plain training and bilevel training, for one problem and for populations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.bilevel.callbacks import as_callbacks
from calibrant.bilevel.compiled import Compiler
from calibrant.bilevel.gradients import hypergradients as hg
from calibrant.bilevel.optimizers.base import Optimizer
from calibrant.bilevel.problem import checks
from calibrant.bilevel.problem.bilevel import NO_VALIDATION_DATA, Bilevel
from calibrant.bilevel.problem.population import Population
from calibrant.bilevel.running.checkpoints import load_run
from calibrant.bilevel.running.outer_step import outer_step
from calibrant.bilevel.running.run import Run
from calibrant.bilevel.running.solution import Solution

if TYPE_CHECKING:
    from calibrant.bilevel.callbacks import Callback


def check_one_process(function: str) -> None:
    """Raise an error in a process group of torch.distributed, whose processes would train separate networks."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        count = torch.distributed.get_world_size()
        if count > 1:
            raise RuntimeError(
                f"{function} trains in one process; got a torch.distributed group of {count} processes. Start one "
                "process, or train the network with your own loop or Lightning and calibrate it with "
                "calibrant.calibrate."
            )


def check_arguments(
    problem: Bilevel | Population,
    hypergradient: hg.Hypergradient,
    outer_optimizer: Optimizer | None,
    outer_steps: int | Tensor,
    restart: bool,
    start: float,
) -> None:
    """Raise an error if the problem, the hypergradient and the numbers of steps do not fit together."""
    check_one_process("calibrant.bilevel.solve")
    if not isinstance(problem, Bilevel | Population):
        raise TypeError(
            f"problem must be a Bilevel or a Population; got a {type(problem).__name__}. Put several problems into "
            "Population([…])."
        )
    if not isinstance(hypergradient, hg.Hypergradient):
        raise TypeError(f"hypergradient must be a Hypergradient such as Unrolled(10); got {hypergradient!r}.")
    if not 0 <= start < 1:
        raise ValueError(f"start must be a share of the run, at least 0 and below 1; got {start}.")
    plain = not hypergradient.moves
    if outer_optimizer is None and not plain:
        raise ValueError(
            "outer_optimizer must be given, since the hypergradient moves φ; got None. Try SGD(learning_rate)."
        )
    if not plain and problem.outer_view.size == 0:
        raise ValueError(
            "The problem has no outer variables to move. Give Bilevel(..., outer=...), or use Plain(steps)."
        )
    if not plain and problem.val is None:
        raise ValueError(NO_VALIDATION_DATA)
    if problem.moves_start and not restart and not plain:
        raise ValueError(
            "restart must be True when the starting point is an outer variable, because each outer step starts from "
            "it; got False."
        )
    if problem.moves_start and not plain and not hypergradient.sees_start:
        raise ValueError(
            f"{hypergradient!r} does not differentiate through the starting point, so that outer variable would never "
            "move. Use Unrolled or Forward."
        )
    if isinstance(outer_steps, Tensor):
        if outer_steps.shape != (problem.members,):
            raise ValueError(f"outer_steps must be a number, or one per member; got shape {tuple(outer_steps.shape)}.")
    elif not isinstance(outer_steps, Real) or outer_steps < 0 or outer_steps % 1 != 0:
        raise ValueError(f"outer_steps must be at least 0 and a whole number; got {outer_steps!r}.")


def check_optimizers(
    problem: Bilevel | Population,
    hypergradient: hg.Hypergradient,
    inner: Optimizer,
    outer: Optimizer | None,
    clip_norm: float | None,
    compile: Compiler | None,
) -> None:
    """Raise an error if an optimiser is not one of this package, or if its rates do not fit the problem."""
    for level, optimizer in (("inner", inner), ("outer", outer)):
        if optimizer is None:
            continue
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"The {level} optimiser must be one of calibrant.bilevel such as Adam(1e-2), whose update can be "
                f"differentiated; got {type(optimizer).__module__}.{type(optimizer).__name__}."
            )
        rate = optimizer.learning_rate_at(1)
        if isinstance(rate, Tensor) and rate.dim() > 0 and rate.shape != (problem.members,):
            raise ValueError(
                f"The {level} learning rate must be a number, or one per member of a population "
                f"({problem.members or 'this is a single problem'}); got shape {tuple(rate.shape)}."
            )
        if level == "outer" and problem.shared_phi is not None:
            rates = [rate, *(part.learning_rate for _, part in getattr(optimizer, "parts", ()))]
            if not all(problem.shared_phi.equal(r) for r in rates if isinstance(r, Tensor) and r.dim() > 0):
                raise ValueError(
                    "The outer learning rate must be the same for all members of a tied group; got different ones."
                )
    if outer is not None and outer.clip_norm is not None:
        raise ValueError("clip_norm of the outer optimiser must be None; pass clip_norm to solve instead.")
    if inner.clip_norm is not None and hypergradient.moves and not hypergradient.direct:
        raise ValueError(
            f"clip_norm of the inner optimiser must be None, because {hypergradient!r} differentiates training steps "
            f"and clipping has no derivative here; got {inner.clip_norm}."
        )
    if inner.groups and (hypergradient.moves or problem.members is not None or compile not in (None, "graphs")):
        raise ValueError(
            "groups of the inner optimiser must be empty, except in plain training of one problem without compile; got "
            f"{len(inner.groups)} parameters."
        )
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm must be positive, or None for no clipping; got {clip_norm}.")


def solve(
    problem: Bilevel | Population,
    *,
    hypergradient: hg.Hypergradient,
    inner_optimizer: Optimizer,
    outer_optimizer: Optimizer | None = None,
    outer_steps: int | Tensor,
    callbacks: Sequence[Callback] = (),
    restart: bool = False,
    clip_norm: float | None = None,
    compile: Compiler | None = None,
    start: float = 0.0,
    resume: str | Path | None = None,
) -> Solution:
    """Solve a bilevel problem, or train with φ fixed (``hypergradient=Plain(steps)``).

    Parameters
    ----------
    problem : Bilevel or Population
        What is solved; many problems of one kind run as one population.
    hypergradient : Hypergradient
        How dF/dφ is computed, and how many training steps belong to one outer step.
    inner_optimizer, outer_optimizer : Optimizer
        ``SGD(learning_rate)`` as outer optimiser is projected gradient descent, as in Algorithm 1 (Sanguin et al.
        2024).
    outer_steps : int, or a tensor with one number per member
        The length of the run.
    callbacks : sequence of Callback
        Called before, after and between outer steps.
    restart : bool
        Start each outer step from Φ_0(φ) instead of from the present training state.
    clip_norm : float, optional
        The largest norm of the hypergradient, per member.
    compile : {None, "trace", "inductor", "graphs"}
        None runs eagerly. ``"trace"`` records each kind of step once (about a second) and replays the tensor
        operations; it pays for small networks and has conditions (:mod:`calibrant.bilevel.compiled`). ``"inductor"``
        runs the network under ``torch.compile`` and compiles second-order steps. Compiling takes much longer, so it
        pays for large networks. ``"graphs"`` records the steps of plain training on a GPU as CUDA graphs, without
        compiling; elsewhere it is None.
    start : float
        The share of the run after which φ begins to move. Before that, the network trains with φ fixed.
    resume : path, optional
        A checkpoint of the same run to continue from (:class:`calibrant.bilevel.Checkpoint`).

    Returns
    -------
    Solution
        The trained parameters and φ. ``solution.export(model)`` writes the parameters into a module.

    Raises
    ------
    NonFiniteError
        If a single problem diverges. A population records the failure of a member in ``solution.failures`` instead.
    """
    check_arguments(problem, hypergradient, outer_optimizer, outer_steps, restart, start)
    check_optimizers(problem, hypergradient, inner_optimizer, outer_optimizer, clip_norm, compile)
    callbacks = as_callbacks(callbacks)
    begin = time.perf_counter()
    run = Run(
        problem,
        hypergradient,
        inner_optimizer,
        outer_optimizer,
        outer_steps,
        callbacks=callbacks,
        restart=restart,
        clip_norm=clip_norm,
        compile=compile,
        start=start,
    )
    checks.check_levels(problem, plain=isinstance(hypergradient, hg.Plain), direct=hypergradient.direct)
    if resume is not None:
        load_run(resume, run)
    if isinstance(run.budget, Tensor):
        run.stop("all outer steps done", run.step >= run.budget)
    for callback in run.callbacks:
        callback.on_start(run)
    run.release()
    try:
        while bool(run.active.any()):
            if run.step >= run.outer_steps:
                run.stop("all outer steps done")
                break
            outer_step(run)
            if isinstance(run.budget, Tensor):
                run.stop("all outer steps done", run.step >= run.budget)
            for callback in run.callbacks:
                callback.on_step(run)
        run.look()
    finally:
        for callback in run.callbacks:
            callback.on_end(run)
    both = (run.dynamics.derivatives, run.outer_derivatives)
    return Solution(
        problem,
        run.state.params,
        run.state.buffers,
        run.phi,
        run.step,
        time.perf_counter() - begin,
        run.reasons,
        run.failures,
        sum(getattr(derivatives, "seconds", 0.0) for derivatives in both),
    )

"""The solver: one loop for plain training and bilevel training, for one problem and for populations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from calibrant.bilevel import checks
from calibrant.bilevel import hypergradients as hg
from calibrant.bilevel.arguments import check_arguments, check_optimizers
from calibrant.bilevel.callbacks.base import as_callbacks
from calibrant.bilevel.checkpoint import load_run
from calibrant.bilevel.optimizers import Optimizer
from calibrant.bilevel.outer_step import outer_step
from calibrant.bilevel.population import Population
from calibrant.bilevel.problem import Bilevel
from calibrant.bilevel.run import Run
from calibrant.bilevel.solution import Solution
from calibrant.bilevel.tracing import Compiler

if TYPE_CHECKING:
    from calibrant.bilevel.callbacks import Callback


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
    compile : {None, "trace", "inductor"}
        None runs eagerly. ``"trace"`` records each kind of step once (about a second) and replays the tensor
        operations; it pays for small networks and has conditions (:mod:`calibrant.bilevel.tracing`). ``"inductor"``
        runs the network under ``torch.compile`` and compiles second-order steps. Compiling takes much longer, so it
        pays for large networks.
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
    check_optimizers(problem, hypergradient, inner_optimizer, outer_optimizer, clip_norm)
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
    levels = (run.dynamics.level, run.outer_level)
    return Solution(
        problem,
        run.state.params,
        run.state.buffers,
        run.phi,
        run.step,
        time.perf_counter() - begin,
        run.reasons,
        run.failures,
        sum(getattr(level, "seconds", 0.0) for level in levels),
    )

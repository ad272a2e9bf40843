"""The one loop. Plain training, bilevel training, one problem or a thousand: all of it runs here.

An outer step is: train for a few steps, differentiate the outer loss through them, move φ, project. A look-ahead
hypergradient moves φ first and trains afterwards.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from calibrant.bilevel import checkpoint
from calibrant.bilevel import hypergradients as hg
from calibrant.bilevel.dynamics import Dynamics, State
from calibrant.bilevel.level import Level
from calibrant.bilevel.optimizers import Moments, Optimizer
from calibrant.bilevel.population import Population
from calibrant.bilevel.problem import Bilevel
from calibrant.bilevel.tracing import Compiler, TracedLevel
from calibrant.data.batch import Batch

if TYPE_CHECKING:
    from calibrant.bilevel.callbacks import Callback


class NonFiniteError(FloatingPointError):
    """A loss or hypergradient that is not a number; the message names the level and the step, and says what to try."""


class Run:
    """A run in progress: what callbacks see and may change."""

    def __init__(
        self,
        problem: Bilevel | Population,
        hypergradient: hg.Hypergradient,
        inner_optimizer: Optimizer,
        outer_optimizer: Optimizer | None,
        outer_steps: int | Tensor,
        callbacks: Sequence[Callback] = (),
        compile: Compiler | None = None,
    ) -> None:
        self.problem, self.hypergradient = problem, hypergradient
        self.callbacks = sorted(callbacks, key=lambda callback: callback.last)
        self.outer_optimizer = outer_optimizer
        self.budget = outer_steps
        self.outer_steps = int(outer_steps.max()) if isinstance(outer_steps, Tensor) else outer_steps
        names = problem.view.differentiable_buffers
        make = Level if compile is None else (lambda fn, names: TracedLevel(fn, names, compile))
        self.dynamics = Dynamics(make(problem.inner, names), inner_optimizer)
        self.outer_level = make(problem.outer, names)
        self.phi = problem.initial_phi()
        self.state = self.fresh_state()
        self.outer_moments: Moments = outer_optimizer.init(self.phi) if outer_optimizer else ()
        self.step = 0
        self.inner_losses: Tensor = torch.empty(0)
        self.outer_loss: Tensor | None = None
        self.gradient: Tensor | None = None
        self.active = torch.ones(problem.members or 1, dtype=torch.bool)
        self.reasons: dict[int, str] = {}
        self.failures: dict[int, str] = {}
        self.stop_steps: dict[int, int] = {}

    @property
    def is_population(self) -> bool:
        """Whether values carry a leading axis over members."""
        return self.problem.members is not None

    def fresh_state(self) -> State:
        """The state before any training, at the present φ."""
        with torch.no_grad():
            params = self.problem.initial_params(self.phi)
        return self.dynamics.start(params, self.problem.initial_buffers())

    def stop(self, reason: str, members: Tensor | None = None) -> None:
        """Ask for the run, or the members where ``members`` is true, to end after this outer step."""
        chosen = self.active.clone() if members is None else members.reshape(-1).cpu() & self.active
        for member in chosen.nonzero().flatten().tolist():
            self.reasons[member] = reason
            self.stop_steps[member] = self.step
        self.active &= ~chosen

    def fail(self, member: int, reason: str) -> None:
        """End one member with an error of its own."""
        self.failures[member] = reason
        self.stop(reason, torch.arange(len(self.active)) == member)

    def where_active(self, new: Any, old: Any) -> Any:
        """``new`` for active members and ``old`` for the others, tensor by tensor."""
        return self.select(self.active, new, old)

    def select(self, mask: Tensor, new: State | Tensor | Moments, old: Any) -> Any:
        """``new`` where ``mask`` holds and ``old`` elsewhere; for one problem all or nothing."""
        if bool(mask.all()):
            return new
        if not self.is_population:
            return old
        if isinstance(new, Tensor):
            return torch.where(mask.to(new.device).view(-1, *[1] * (new.dim() - 1)), new, old)
        if isinstance(new, State):
            return State(
                self.select(mask, new.params, old.params),
                self.select(mask, new.moments, old.moments),
                {k: self.select(mask, b, old.buffers[k]) for k, b in new.buffers.items()},
                new.step,
            )
        return tuple(self.select(mask, n, o) for n, o in zip(new, old, strict=True))

    def evaluate(self, state: State | None = None, batch: Batch | None = None) -> Tensor:
        """The outer loss at the present parameters, or at ``state``; on the next validation batch, or on ``batch``."""
        state = self.state if state is None else state
        batch = self.problem.val_batch(self.step) if batch is None else batch
        return self.outer_level.value(state.params, state.buffers, self.phi, batch)[0]


@dataclasses.dataclass(frozen=True)
class Solution:
    """What a run ended with. Populations carry a leading axis; ``solution.member(k)`` takes one out."""

    problem: Bilevel | Population
    params: Tensor
    buffers: dict[str, Tensor]
    phi: Tensor
    outer_steps: int
    seconds: float
    reasons: dict[int, str]
    """Why the run, or each member, ended."""
    failures: dict[int, str]
    """The members that failed, and how."""
    compile_seconds: float = 0.0

    def member(self, index: int) -> Solution:
        """One member as a solution of its own problem."""
        if not isinstance(self.problem, Population):
            raise ValueError("This is the solution of a single problem; it has no members.")
        return dataclasses.replace(
            self,
            problem=self.problem.problems[index],
            params=self.params[index],
            buffers={k: b[index] for k, b in self.buffers.items()},
            phi=self.phi[index],
            reasons={0: self.reasons[index]} if index in self.reasons else {},
            failures={0: self.failures[index]} if index in self.failures else {},
        )

    def export(self, into: nn.Module) -> nn.Module:
        """Write the trained parameters and buffers into ``into``, a module like the problem's model."""
        self._one("export")
        return self.problem.view.export(self.params, self.buffers, into)

    def outer_variables(self) -> dict[str, Tensor]:
        """φ by name."""
        return self.problem.outer_view.unflatten(self.phi)

    def predict(self, inputs: Any) -> Tensor:
        """The trained network's output in evaluation mode, without gradient."""
        self._one("predict")
        with torch.no_grad():
            return self.problem.view.bind(self.params, self.buffers, train=False)(inputs)

    def _one(self, what: str) -> None:
        if isinstance(self.problem, Population):
            raise ValueError(f"{what} works on one member: solution.member(k).{what}(…).")


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
    resume: str | Path | None = None,
) -> Solution:
    """Solve a bilevel problem, or train with φ fixed (``hypergradient=Plain(steps)``).

    Parameters
    ----------
    problem : Bilevel or Population
    hypergradient : Hypergradient
        How dF/dφ is had, and how many inner steps belong to one outer step.
    inner_optimizer, outer_optimizer : Optimizer
        ``SGD(lr)`` outside is plain projected descent, as Algorithm 1 (Sanguin et al. 2024) prints it.
    outer_steps : int, or a tensor with one number per member
    callbacks : sequence of Callback
    restart : bool
        Start each outer step from Φ_0(φ) again instead of going on from where training stands.
    clip_norm : float, optional
        Largest norm of the hypergradient (per member).
    compile : {None, "trace", "inductor"}
        None is eager. ``"trace"`` records each kind of step once (about a second) and replays bare tensor operations;
        ``"inductor"`` compiles them as well (tens of seconds). See :mod:`calibrant.bilevel.tracing` for what tracing
        asks.
    resume : path, optional
        A checkpoint (:class:`calibrant.bilevel.callbacks.Checkpoint`) of the same run to go on from.
    """
    _check(problem, hypergradient, outer_optimizer, outer_steps, restart)
    _check_optimizers(problem, inner_optimizer, outer_optimizer, clip_norm)
    if isinstance(hypergradient, hg.OneStep) and hypergradient.scope == "head" and hypergradient.head_size is None:
        hypergradient = dataclasses.replace(hypergradient, head_size=problem.head_size)
    begin = time.perf_counter()
    run = Run(problem, hypergradient, inner_optimizer, outer_optimizer, outer_steps, callbacks, compile)
    if resume is not None:
        checkpoint.load(resume, run)
    if isinstance(run.budget, Tensor):
        run.stop("all outer steps done", run.step >= run.budget)
    for callback in run.callbacks:
        callback.on_start(run)
    _release(run)
    try:
        while bool(run.active.any()):
            if run.step >= run.outer_steps:
                run.stop("all outer steps done")
                break
            _outer_step(run, restart, clip_norm)
            if isinstance(run.budget, Tensor):
                run.stop("all outer steps done", run.step >= run.budget)
            for callback in run.callbacks:
                callback.on_step(run)
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


def _outer_step(run: Run, restart: bool, clip_norm: float | None) -> None:
    problem, hypergradient = run.problem, run.hypergradient
    taken = run.step * hypergradient.steps
    start = run.fresh_state() if restart else run.state
    offset = taken - start.step  # a restarted state counts its steps from 0, the data goes on
    at_origin = restart or run.step == 0
    view = hg.Problem(
        run.dynamics,
        run.outer_level,
        lambda step: problem.train_batch(step + offset),
        problem.val_batch(run.step) if not isinstance(hypergradient, hg.Plain) else None,  # type: ignore[arg-type]
        _pull_initial(problem, run.phi) if problem.moves_start and at_origin else None,
        _push_initial(problem, run.phi) if problem.moves_start and at_origin else None,
    )
    estimate = hypergradient(view, start, run.phi)
    phi, moments, gradient = run.phi, run.outer_moments, estimate.gradient
    if gradient is not None and run.outer_optimizer is not None:
        with torch.no_grad():
            if clip_norm is not None:
                norm = gradient.norm(dim=-1, keepdim=True)
                gradient = gradient * torch.where(norm > clip_norm, clip_norm / norm, 1.0)
            phi, moments = run.outer_optimizer.update(run.phi, run.outer_moments, gradient, run.step + 1)
            phi = problem.project(phi)
    state, inner_losses = estimate.state, estimate.inner_losses
    if hypergradient.lookahead:
        state, inner_losses = hypergradient._train(view, state, phi, hypergradient.steps)
    run.inner_losses = torch.stack([loss.detach() for loss in inner_losses])
    run.outer_loss, run.gradient = estimate.loss, gradient
    keep = _examine(run, taken, state.params, phi) & run.active
    run.state = run.select(keep, state, run.state)
    run.phi = run.select(keep, phi, run.phi)
    run.outer_moments = run.select(keep, moments, run.outer_moments)
    run.step += 1
    _release(run)


def _release(run: Run) -> None:
    """Let loaders forget the batches that lie behind."""
    run.problem.train.release(run.step * run.hypergradient.steps)
    if run.problem.val is not None:
        run.problem.val.release(run.step)


_REMEDIES = {
    "inner loss": "try a smaller inner learning rate, or look for inputs that are not finite",
    "inner parameter vector": "the inner losses are finite, so an update overflowed: try a smaller inner learning rate",
    "outer loss": "look for validation inputs that are not finite, or an outer loss that takes the logarithm of zero",
    "hypergradient": "the losses are finite, so differentiation overflowed: try fewer inner steps, Truncated, a lower "
    "inner learning rate, or float64",
    "vector of outer variables": "the hypergradient is finite, so the update overflowed: try a smaller outer learning "
    "rate, or clip_norm",
}


def _examine(run: Run, taken: int, params: Tensor, phi: Tensor) -> Tensor:
    """Which members are still finite. The others fail with a message; a single problem raises it."""
    members = run.problem.members or 1

    def whole(vector: Tensor) -> Tensor:
        return vector.reshape(members, -1).isfinite().all(1).reshape(1, members)

    inner = {"inner loss": run.inner_losses.reshape(-1, members).isfinite(), "inner parameter vector": whole(params)}
    outer: dict[str, Tensor] = {}
    if run.outer_loss is not None:
        outer["outer loss"] = run.outer_loss.reshape(1, members).isfinite()
    if run.gradient is not None:
        outer |= {"hypergradient": whole(run.gradient), "vector of outer variables": whole(phi)}
    # In the order of computation, so that the message names the first cause.
    found = outer | inner if run.hypergradient.lookahead else inner | outer
    good = torch.cat([ok.all(0, keepdim=True) for ok in found.values()]).cpu()
    if bool(good.all()):
        return torch.ones(members, dtype=torch.bool)
    for member in ((~good.all(0)) & run.active).nonzero().flatten().tolist():
        level, ok = next((k, ok) for k, ok in found.items() if not bool(ok[:, member].all()))
        where = f"outer step {run.step + 1}"
        if level == "inner loss":
            first = int((~ok[:, member]).nonzero()[0])
            where = f"inner step {taken + first + 1} ({where})"
        message = f"The {level} was not finite at {where}; {_REMEDIES[level]}."
        if not run.is_population:
            raise NonFiniteError(message)
        run.fail(member, message)
    return good.all(0)


def _pull_initial(problem: Bilevel | Population, phi: Tensor):  # type: ignore[no-untyped-def]
    """λ ↦ (∂Φ_0/∂φ)ᵀ λ."""

    def pull(adjoint: Tensor) -> Tensor:
        leaf = phi.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(problem.initial_params(leaf), leaf, adjoint)[0]

    return pull


def _push_initial(problem: Bilevel | Population, phi: Tensor):  # type: ignore[no-untyped-def]
    """V ↦ (∂Φ_0/∂φ) v."""
    return lambda tangent: torch.func.jvp(problem.initial_params, (phi,), (tangent.contiguous(),))[1]


def _check(
    problem: Bilevel | Population,
    hypergradient: hg.Hypergradient,
    outer_optimizer: Optimizer | None,
    outer_steps: int | Tensor,
    restart: bool,
) -> None:
    if not isinstance(hypergradient, hg.Hypergradient):
        raise TypeError(f"hypergradient must be a value such as Unrolled(10); got {hypergradient!r}.")
    plain = isinstance(hypergradient, hg.Plain)
    if outer_optimizer is None and not plain:
        raise ValueError("A hypergradient without an outer optimiser moves nothing: give outer_optimizer=SGD(lr), say.")
    if not plain and problem.outer_view.size == 0:
        raise ValueError("There are no outer variables to move: give Bilevel(..., outer=...), or use Plain(steps).")
    if not plain and problem.val is None:
        raise ValueError("The outer level needs validation data: Bilevel(..., val=(inputs, targets)).")
    if problem.moves_start and not restart and not plain:
        raise ValueError(
            "The starting point is an outer variable, so each outer step must start from it: restart=True."
        )
    if isinstance(outer_steps, Tensor):
        if outer_steps.shape != (problem.members,):
            raise ValueError(f"outer_steps must be a number, or one per member; got shape {tuple(outer_steps.shape)}.")
    elif outer_steps < 0:
        raise ValueError(f"outer_steps must not be negative; got {outer_steps}.")


def _check_optimizers(
    problem: Bilevel | Population, inner: Optimizer, outer: Optimizer | None, clip_norm: float | None
) -> None:
    for level, optimizer in (("inner", inner), ("outer", outer)):
        if optimizer is None:
            continue
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"The {level} optimiser must be a value such as calibrant.bilevel.Adam(1e-2), whose update can be "
                f"differentiated; got {type(optimizer).__module__}.{type(optimizer).__name__}."
            )
        lr = optimizer.lr(1) if callable(optimizer.lr) else optimizer.lr
        if isinstance(lr, Tensor) and lr.dim() > 0 and lr.shape != (problem.members,):
            raise ValueError(
                f"The {level} learning rate must be a number, or one per member of a population "
                f"({problem.members or 'this is a single problem'}); got shape {tuple(lr.shape)}."
            )
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm must be positive, or None for no clipping; got {clip_norm}.")

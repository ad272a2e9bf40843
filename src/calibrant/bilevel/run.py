"""A run in progress, and one outer step of it.

An outer step is: train for a few steps, differentiate the outer loss through them, move φ, project. A hypergradient
that looks ahead moves φ first and trains afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant.bilevel import hypergradients as hg
from calibrant.bilevel.crowd import Crowd, crowd_rows
from calibrant.bilevel.dynamics import Dynamics, State
from calibrant.bilevel.features import Memory
from calibrant.bilevel.fingerprint import fingerprint
from calibrant.bilevel.finite import Lookout, examine, sound
from calibrant.bilevel.heads import Heads
from calibrant.bilevel.level import Level, LossFunction
from calibrant.bilevel.native import Trainer
from calibrant.bilevel.optimizers import Moments, Optimizer
from calibrant.bilevel.population import Population
from calibrant.bilevel.problem import Bilevel
from calibrant.bilevel.replay import Outcome, Replay, can_replay
from calibrant.bilevel.tracing import Compiler, TracedLevel
from calibrant.data.batch import Batch, Tensors

if TYPE_CHECKING:
    from calibrant.bilevel.callbacks import Callback


class Run:
    """A run in progress: what callbacks see and may change."""

    def __init__(
        self,
        problem: Bilevel | Population,
        hypergradient: hg.Hypergradient,
        inner_optimizer: Optimizer,
        outer_optimizer: Optimizer | None,
        outer_steps: int | Tensor,
        *,
        callbacks: Sequence[Callback] = (),
        restart: bool = False,
        clip_norm: float | None = None,
        compile: Compiler | None = None,
        start: float = 0.0,
    ) -> None:
        for stream in (problem.train, problem.val):
            if stream is not None:
                stream.rewind()
        self.problem, self.hypergradient = problem, hypergradient
        self.restart, self.clip_norm = restart, clip_norm
        self.callbacks = sorted(callbacks, key=lambda callback: callback.last)
        self.outer_optimizer = outer_optimizer
        self.budget = outer_steps
        self.outer_steps = int(outer_steps.max()) if isinstance(outer_steps, Tensor) else outer_steps
        self.first_move = math.ceil(start * self.outer_steps)
        names = problem.view.differentiable_buffers
        inner_optimizer = inner_optimizer.bound(problem.view.weight_mask)
        trainer = None
        if isinstance(problem, Bilevel) and compile != "trace" and (hypergradient.trains or start):
            trainer = Trainer(problem, inner_optimizer, compile=compile == "inductor")
        inner = _level(problem.inner, names, compile, detaches=problem.detaches)
        self.dynamics = Dynamics(inner, inner_optimizer, trainer)
        self.heads = Heads(problem, trainer) if hypergradient.of_head and problem.separable else None
        self.features = None
        if hypergradient.remembers:
            axes = problem.train.axes if isinstance(problem, Population) else None
            self.features = Memory(hypergradient.remembers, axes)
        self.outer_level = _level(problem.outer, names, compile)
        self.phi = problem.initial_phi()
        self._state: State | None = None
        self._read_state: Callable[[], State] | None = None
        self.state = self.fresh_state()
        self.outer_moments: Moments = outer_optimizer.init(self.phi) if outer_optimizer else ()
        self.step = 0
        self.inner_losses: Tensor = torch.empty(0)
        self.outer_loss: Tensor | None = None
        self.gradient: Tensor | None = None
        self.active = torch.ones(problem.members or 1, dtype=torch.bool)
        self.ran = self.active.clone()
        # A learned start is pulled back as a whole. Inductor would compile each new shape for longer than it saves, and
        # so would tracing on a GPU, where a step's time is that of its launches, however many members there are.
        costly = compile == "inductor" or (compile == "trace" and self.state.params.is_cuda)
        self._compacts = self.is_population and not costly and not problem.moves_start and not hypergradient.of_head
        self._crowd: Crowd | None = None
        self.reasons: dict[int, str] = {}
        self.failures: dict[int, str] = {}
        self.stop_steps: dict[int, int] = {}
        self.lookout = Lookout()
        self.replay = Replay(self, _compute) if can_replay(self, compile) else None

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Settings and data in plain values; first asked for before batches are released (a checkpoint needs it)."""
        return fingerprint(self)

    @property
    def state(self) -> State:
        """Where training stands. A replayed step leaves it on the device, and it is copied out when it is asked for."""
        if self._state is None:
            assert self._read_state is not None
            self._state = self._read_state()
        return self._state

    @state.setter
    def state(self, value: State) -> None:
        self._state, self._read_state = value, None

    def defer_state(self, read: Callable[[], State]) -> None:
        """Let ``read`` give the state, if anyone asks before the next step."""
        self._state, self._read_state = None, read

    @property
    def deferred(self) -> bool:
        """Whether nobody has asked for the state since the last step."""
        return self._state is None

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

    def pool(self, values: Tensor, counts: Tensor) -> Tensor:
        """The mean over each tied group of the members that ``counts`` marks; without ties the values themselves."""
        ties = self.problem.ties
        return values if ties is None else ties.mean(values, counts)

    def together(self, mask: Tensor) -> Tensor:
        """The members whose φ is concerned when that of the members in ``mask`` is: their tied groups."""
        ties = self.problem.ties
        return mask if ties is None else ties.any(mask)

    def evaluate(self, state: State | None = None, batch: Batch | None = None) -> Tensor:
        """The outer loss at the present parameters, or at ``state``; on the next validation batch, or on ``batch``."""
        state = self.state if state is None else state
        batch = self.problem.val_batch(self.step) if batch is None else batch
        return self.outer_level.value(state.params, state.buffers, self.phi, batch)[0]

    def crowd(self) -> Crowd | None:
        """The part of a population that the next outer step is computed on; None for all of it."""
        rows = crowd_rows(self.active) if self._compacts else None
        if rows is None or self._crowd is None or not torch.equal(self._crowd.chosen, rows):
            self._crowd = None if rows is None else Crowd(rows, len(self.active), self.state.params.device)
        return self._crowd

    @property
    def present(self) -> hg.Hypergradient:
        """What this outer step differentiates by: nothing before the share ``start`` of the run is over."""
        return self.hypergradient if self.step >= self.first_move else hg.Plain(self.hypergradient.steps)

    def look(self) -> None:
        """Read what a GPU has not been asked yet: raise the error of a step whose values were not finite."""
        self.lookout.look()

    def extra_tensors(self) -> Tensors:
        """What a checkpoint keeps beside parameters, moments, buffers and φ: the features of recent batches."""
        return {} if self.features is None else self.features.tensors()

    def load_extra_tensors(self, tensors: Tensors) -> None:
        """Take up what :meth:`extra_tensors` gave."""
        if self.features is not None:
            self.features.restore(tensors, self.problem.train_batch(self.step * self.hypergradient.steps))

    def release(self) -> None:
        """Let loaders forget the batches that lie behind."""
        self.problem.train.release(self.step * self.hypergradient.steps)
        if self.problem.val is not None:
            self.problem.val.release(self.step)


def _level(fn: LossFunction, names: Sequence[str], compile: Compiler | None, *, detaches: bool = False) -> Level:
    if compile is None:
        return Level(fn, names, detaches=detaches)
    return TracedLevel(fn, names, compile, detaches=detaches)


def outer_step(run: Run) -> None:
    """Take one outer step: training, the hypergradient, and the move of φ."""
    taken = run.step * run.present.steps
    run.ran = run.active.clone()
    outcome = run.replay() if run.replay is not None else _from_state(run, taken)
    run.inner_losses = torch.stack([loss.detach() for loss in outcome.inner_losses])
    run.outer_loss, run.gradient = outcome.estimate.loss, outcome.gradient
    if run.hypergradient.moves and run.outer_loss is None:  # φ waits: keep the rows of a history side by side
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


def _from_state(run: Run, taken: int) -> Outcome:
    """An outer step from the run's state, or from a fresh one."""
    problem, hypergradient = run.problem, run.present
    start = run.fresh_state() if run.restart else run.state
    offset = taken - start.step  # a restarted state counts its steps from 0, the data goes on
    at_origin = run.restart or run.step == 0
    view = hg.Problem(
        run.dynamics,
        run.outer_level,
        lambda step: problem.train_batch(step + offset),
        problem.val_batch(run.step) if hypergradient.moves else None,  # type: ignore[arg-type]
        pull_initial(problem, run.phi) if problem.moves_start and at_origin else None,
        push_initial(problem, run.phi) if problem.moves_start and at_origin else None,
        problem.stretch if hypergradient.of_head else None,
        run.heads,
        run.features,
    )
    return _compute(run, view, start, run.phi, run.outer_moments, run.outer_optimizer, run.step)


def _compute(
    run: Run,
    view: hg.Problem,
    start: State,
    phi: Tensor,
    moments: Moments,
    optimizer: Optimizer | None,
    step: int,
) -> Outcome:
    """One outer step from ``start`` and ``phi``; nothing of the run is changed."""
    problem, hypergradient, before = run.problem, run.present, phi
    crowd = run.crowd()
    if crowd is None:
        estimate = hypergradient(view, start, phi)
    else:
        view = _of_crowd(view, crowd, problem)
        estimate = crowd.estimate(hypergradient(view, crowd.take(start), crowd.take(phi)), start)
    gradient = estimate.gradient
    if gradient is not None and optimizer is not None:
        with torch.no_grad():
            if problem.ties is not None:
                gradient = run.pool(gradient, run.active & sound(run, estimate))
            if run.clip_norm is not None:
                norm = gradient.norm(dim=-1, keepdim=True)
                gradient = gradient * torch.where(norm > run.clip_norm, run.clip_norm / norm, 1.0)
            phi, moments = optimizer.update(before, moments, gradient, step + 1)
            phi = problem.project(phi)
    state, inner_losses = estimate.state, estimate.inner_losses
    if hypergradient.lookahead and crowd is None:
        state, inner_losses = hypergradient.train(view, state, phi, hypergradient.steps)
    elif hypergradient.lookahead and crowd is not None:
        part, losses = hypergradient.train(view, crowd.take(state), crowd.take(phi), hypergradient.steps)
        state, inner_losses = crowd.spread(part, state), crowd.losses(losses)
    return Outcome(estimate, gradient, phi, moments, state, inner_losses)


def _of_crowd(view: hg.Problem, crowd: Crowd, problem: Bilevel | Population) -> hg.Problem:
    """What a hypergradient is taken of, for some of the members."""
    assert isinstance(problem, Population)
    return view._replace(
        dynamics=Dynamics(view.dynamics.level, crowd.optimizer(view.dynamics.optimizer)),
        draws=lambda step: crowd.batch(view.draws(step), problem.train.axes),
        outer_batch=crowd.batch(view.outer_batch, problem.val.axes) if problem.val and view.outer_batch else None,  # type: ignore[arg-type]
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

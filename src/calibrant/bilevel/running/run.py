"""The state of a run in progress, which callbacks read and change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from calibrant.bilevel.compiled import Compiler, Replay, TracedDerivatives, can_replay
from calibrant.bilevel.gradients import hypergradients as hg
from calibrant.bilevel.gradients.dynamics import Dynamics, State
from calibrant.bilevel.gradients.head import NOT_OF_FEATURES, HeadLosses, is_of_features
from calibrant.bilevel.gradients.loss_derivatives import LossDerivatives, LossFunction
from calibrant.bilevel.optimizers.base import Moments, Optimizer
from calibrant.bilevel.problem.bilevel import Bilevel
from calibrant.bilevel.problem.population import Population
from calibrant.bilevel.running.checkpoints import fingerprint
from calibrant.bilevel.running.finite import DeferredFiniteCheck
from calibrant.bilevel.running.trainer import Trainer
from calibrant.data.streams.batch import Batch

if TYPE_CHECKING:
    from calibrant.bilevel.callbacks import Callback


class Run:
    """A run in progress. Callbacks read it and may change it."""

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
        inner_optimizer = inner_optimizer.bound(problem.view.weight_mask, problem.view.spread)
        inner = _derivatives(problem.inner, names, compile, detaches=problem.detaches)
        self.dynamics, trainer = Dynamics(inner, inner_optimizer), None
        copies = restart or not isinstance(hypergradient, hg.Plain)  # others may train several times from one state
        if isinstance(problem, Bilevel) and compile != "trace" and (hypergradient.trains or start):
            self.dynamics = trainer = Trainer(
                problem, inner, inner_optimizer, compile=compile == "inductor", copies=copies
            )
        self.masks = trainer is None or compile != "graphs" or not isinstance(hypergradient, hg.Plain)
        """Whether masks are drawn for dropout layers; else these draw by themselves, after one seed per outer step."""
        self.head = HeadLosses(problem, trainer, hypergradient.remembers)
        if hypergradient.of_head and not is_of_features(problem.template):
            raise ValueError(f"{hypergradient!r} cannot be used: {NOT_OF_FEATURES}")
        self.outer_derivatives = _derivatives(problem.outer, names, compile)
        self.phi = problem.initial_phi()
        self._state: State | None = None
        self._deferred: tuple[Trainer, int] | None = None
        self.state = self.fresh_state()
        if trainer is not None and not copies:
            trainer.load(self.state)
            self.defer_state(trainer, 0)
        self.outer_moments: Moments = outer_optimizer.init(self.phi) if outer_optimizer else ()
        self.step = 0
        self.inner_losses: Tensor = torch.empty(0)
        self.outer_loss: Tensor | None = None
        self.gradient: Tensor | None = None
        self.active = torch.ones(problem.members or 1, dtype=torch.bool, device="cpu")
        self.ran = self.active.clone()
        self.reasons: dict[int, str] = {}
        self.failures: dict[int, str] = {}
        self.deferred_finite_check = DeferredFiniteCheck()
        self.replay = Replay(self) if can_replay(self, compile) else None

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Settings and data in plain values. It must first be read before batches are released."""
        return fingerprint(self)

    @property
    def state(self) -> State:
        """The training state. Where steps change it in place, it is copied when it is first read."""
        if self._state is None:
            assert self._deferred is not None
            trainer, step = self._deferred
            self._state = trainer.hand_out(step)
        return self._state

    @state.setter
    def state(self, value: State) -> None:
        self._state = value

    @property
    def live_state(self) -> State:
        """The training state without a copy: the next step may change its tensors."""
        if self._state is None:
            assert self._deferred is not None
            trainer, step = self._deferred
            return trainer.live(step)
        return self._state

    def defer_state(self, trainer: Trainer, step: int) -> None:
        """The state is that of ``trainer`` after ``step`` steps. It is copied if it is read before the next step."""
        self._state, self._deferred = None, (trainer, step)

    @property
    def deferred(self) -> bool:
        """Whether the state has not been read since the last step."""
        return self._state is None

    @property
    def is_population(self) -> bool:
        """Whether tensors have a leading axis over members."""
        return self.problem.members is not None

    def fresh_state(self) -> State:
        """The state before any training, for the present φ."""
        with torch.no_grad():
            params = self.problem.initial_params(self.phi)
        return self.dynamics.start(params, self.problem.initial_buffers())

    def stop(self, reason: str, members: Tensor | None = None) -> None:
        """End the run, or the members where ``members`` is true, after this outer step."""
        chosen = self.active.clone() if members is None else members.reshape(-1).cpu() & self.active
        for member in chosen.nonzero().flatten().tolist():
            self.reasons[member] = reason
        self.active &= ~chosen

    def fail(self, member: int, reason: str) -> None:
        """End one member and record its error message."""
        self.failures[member] = reason
        self.stop(reason, torch.arange(len(self.active), device="cpu") == member)

    def select(self, mask: Tensor, new: State | Tensor | Moments, old: Any) -> Any:
        """``new`` for the members in ``mask`` and ``old`` for the others. A single problem takes one or the other."""
        if bool(mask.all()):
            return new
        if not self.is_population:
            return old

        def chosen(fresh: Any, stale: Any) -> Any:
            if not isinstance(fresh, Tensor):
                return fresh
            return torch.where(mask.to(fresh.device).view(-1, *[1] * (fresh.dim() - 1)), fresh, stale)

        return pytree.tree_map(chosen, new, old)

    def pool(self, values: Tensor, counts: Tensor) -> Tensor:
        """The mean over each tied group, of the members in ``counts``. Without ties, the values themselves."""
        shared_phi = self.problem.shared_phi
        return values if shared_phi is None else shared_phi.mean(values, counts)

    def together(self, mask: Tensor) -> Tensor:
        """All members that share φ with a member in ``mask``."""
        shared_phi = self.problem.shared_phi
        return mask if shared_phi is None else shared_phi.any(mask)

    def evaluate(self, state: State | None = None, batch: Batch | None = None) -> Tensor:
        """The outer loss at ``state`` on ``batch``. Defaults: the present state and the next validation batch."""
        state = self.live_state if state is None else state
        batch = self.problem.val_batch(self.step) if batch is None else batch
        return self.outer_derivatives.value(state.params, state.buffers, self.phi, batch)[0]

    def train_batch(self, step: int) -> Batch:
        """The batch of a training step, with the masks of dropout layers if :attr:`masks` says so."""
        return self.problem.train_batch(step) if self.masks else self.problem.train.batch(step)

    def layer_seed(self, taken: int) -> int | None:
        """The seed of an outer step after ``taken`` steps, for layers that draw by themselves; None without any."""
        problem = self.problem
        random = not self.masks and (problem.view.dropouts or problem.template.stochastic)
        return problem.template.noise_seed(taken) if random else None

    @property
    def present(self) -> hg.Hypergradient:
        """The hypergradient of this outer step: :class:`Plain` until the share ``start`` of the run is over."""
        return self.hypergradient if self.step >= self.first_move else hg.Plain(self.hypergradient.steps)

    def look(self) -> None:
        """Read results that are still on a GPU. Raises the error of the first step with values that are not finite."""
        self.deferred_finite_check.look()

    def release(self) -> None:
        """Let the data streams drop batches that are no longer needed."""
        self.problem.train.release(self.step * self.hypergradient.steps)
        if self.problem.val is not None:
            self.problem.val.release(self.step)


def _derivatives(
    fn: LossFunction, names: Sequence[str], compile: Compiler | None, *, detaches: bool = False
) -> LossDerivatives:
    if compile is None or compile == "graphs":
        return LossDerivatives(fn, names, detaches=detaches)
    return TracedDerivatives(fn, names, compile, detaches=detaches)

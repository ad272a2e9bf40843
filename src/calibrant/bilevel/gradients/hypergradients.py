"""Hypergradients: choose how dF/dφ is computed by passing one of these objects to ``solve``.

With ``θ_0 = Φ_0(φ)`` and ``θ_t = Φ_t(θ_{t-1}, φ)`` (Eq. (6), Sanguin et al. 2024) the hypergradient is (Eq. (8))::

    dF/dφ = ∂F/∂φ + (dθ_T/dφ)ᵀ ∂F/∂θ

=====================  =====================================================  ==========================================
object                 the map that it differentiates                         cost of an outer step (1 = plain training)
=====================  =====================================================  ==========================================
``Unrolled``           all T steps, exactly                                   about 3; memory by ``memory=``
``Truncated``          φ acts in the last K of T steps only                   about 1 + 2·K/T; memory of K steps
``Forward``            all T steps, exactly                                   grows with dim φ; memory of one step
``Implicit``           the solution of ∇θ L(θ, φ) = 0 near θ_T                1 + one linear solve
``Implicit``, head     the solution of the last layer on recent features      1 + a small linear solve
``OneStep``            one look-ahead step of the whole network               look-ahead + the real steps
``OneStep``, head      one look-ahead step of the last layer                  1 + a pass of the outer batch
``Direct``             none: θ is held fixed, only ∂F/∂φ                      1 + a pass of the outer batch
``Feedback``           none: φ follows a signed held-out quantity             1 + a pass of the outer batch
``Plain``              none: training with φ fixed                            1
=====================  =====================================================  ==========================================

``steps`` is the number of training steps per outer step. ``first`` is the level that moves first in an outer step:
``"outer"`` moves φ and then trains with it, ``"inner"`` trains and then moves φ.

``memory`` of the reverse sweeps (K differentiated steps):

* ``"graphs"`` keeps each step's graph. It is fastest, and holds the activations of all K steps.
* ``"checkpoints"`` keeps about 2·√K states and trains a second time between them. It needs the least memory.
* ``"auto"`` measures one graph. It keeps graphs if all of them fit
  (:func:`calibrant.bilevel.gradients.dynamics.graphs_fit`), and uses checkpoints otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from calibrant.base.settings import check_choice
from calibrant.base.warning import warn
from calibrant.bilevel.gradients.dynamics import Cotangent, Draws, Dynamics, State, Tape, graphs_fit
from calibrant.bilevel.gradients.head import BodyPass, HeadLosses
from calibrant.bilevel.gradients.loss_derivatives import FullGradient, LossDerivatives
from calibrant.bilevel.optimizers.base import Linearization
from calibrant.bilevel.optimizers.sgd_and_adam import SGD
from calibrant.data.streams.batch import Batch

Order = Literal["inner", "outer"]
Scope = Literal["all", "head"]
MemoryPolicy = Literal["auto", "graphs", "checkpoints"]


class HypergradientInput(NamedTuple):
    """The input of a hypergradient: training as a map, the outer loss, and the data of one outer step.

    ``outer_batch`` is None if φ does not move. ``head`` has the losses as functions of the head alone. ``initial`` is
    Φ_0 if the starting point of this outer step depends on φ.
    """

    dynamics: Dynamics
    outer: LossDerivatives
    draws: Draws
    outer_batch: Batch | None
    head: HeadLosses
    initial: Callable[[Tensor], Tensor] | None = None

    @property
    def required_outer_batch(self) -> Batch:
        """The batch on which the outer loss is differentiated."""
        assert self.outer_batch is not None, "a hypergradient that moves φ needs an outer batch"
        return self.outer_batch


class HypergradientResult(NamedTuple):
    """The result of a hypergradient: the outer loss, dF/dφ, the inner losses, and the state after training."""

    loss: Tensor | None
    gradient: Tensor | None
    inner_losses: list[Tensor]
    state: State
    details: dict[str, Any] = {}  # noqa: RUF012 (never written to)


@dataclass(frozen=True)
class Hypergradient:
    """Base class of the hypergradients, with ``steps`` inner steps per outer step."""

    moves: ClassVar[bool] = True
    """Whether φ moves."""
    direct: ClassVar[bool] = False
    """Whether only ∂F/∂φ is computed, as if training did not depend on φ."""
    steps: int = 1

    @property
    def lookahead(self) -> bool:
        """Whether φ moves before the real training steps (True) or after them (False)."""
        return False

    @property
    def of_head(self) -> bool:
        """Whether only the last layer is differentiated."""
        return False

    @property
    def trains(self) -> bool:
        """Whether some training steps are not differentiated."""
        return True

    @property
    def remembers(self) -> int:
        """The number of recent batches whose features it needs."""
        return 0

    def __post_init__(self) -> None:
        if not isinstance(self.steps, Integral) or self.steps < 1:
            raise ValueError(f"steps must be at least 1 and a whole number; got {self.steps!r}.")

    @property
    def sees_start(self) -> bool:
        """Whether the path from φ through the starting point Φ_0 is differentiated."""
        return False

    def __call__(self, inputs: HypergradientInput, start: State, phi: Tensor) -> HypergradientResult:
        """Run the inner level from ``start`` and differentiate the outer loss."""
        raise NotImplementedError

    def train(self, inputs: HypergradientInput, state: State, phi: Tensor, steps: int) -> tuple[State, list[Tensor]]:
        """Take ordinary training steps. Returns the state after them and the loss before each step."""
        head = inputs.head

        def look(state: State, batch: Batch) -> None:
            head.memory.add(batch, head.see(state, batch).features)

        return inputs.dynamics.train(state, phi, inputs.draws, steps, look if head.memory.size else None)


@dataclass(frozen=True)
class Plain(Hypergradient):
    """No hypergradient: ordinary training with φ fixed. The outer loss is not evaluated."""

    moves: ClassVar[bool] = False

    def __call__(self, inputs: HypergradientInput, start: State, phi: Tensor) -> HypergradientResult:
        state, losses = self.train(inputs, start, phi, self.steps)
        return HypergradientResult(None, None, losses, state)


@dataclass(frozen=True)
class Truncated(Hypergradient):
    """Reverse mode through the last ``last`` of ``steps`` inner steps.

    It differentiates the map in which φ enters the loss of the last K steps and is a constant before them.
    ``Truncated(T, T)`` equals ``Unrolled(T)``.

    Parameters
    ----------
    steps : int
        T, the number of inner steps per outer step.
    last : int
        K, the number of steps that are differentiated.
    memory : {"auto", "graphs", "checkpoints"}
        What is kept for the backward pass: the graph of each step, or 2·√K states. "auto" keeps graphs if they fit into
        2 GiB (on a GPU, half of its free memory), and otherwise checkpoints.
    """

    last: int = 1
    memory: MemoryPolicy = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.last <= self.steps:
            raise ValueError(f"last must be between 1 and steps={self.steps}; got {self.last}.")
        check_choice("memory", self.memory, ("auto", "graphs", "checkpoints"))

    @property
    def sees_start(self) -> bool:
        return self.last == self.steps

    @property
    def trains(self) -> bool:
        return self.last < self.steps

    def __call__(self, inputs: HypergradientInput, start: State, phi: Tensor) -> HypergradientResult:
        dynamics = inputs.dynamics
        entry, losses = self.train(inputs, start, phi, self.steps - self.last)
        memory = self.memory
        if memory == "auto":
            memory = (
                "graphs" if graphs_fit(dynamics, entry, phi, inputs.draws(entry.step), self.last) else "checkpoints"
            )
        tape = Tape(dynamics, inputs.draws, phi, entry, self.last, memory)
        state, more = tape.forward()
        outer, adjoint = outer_gradient(inputs, state, phi)
        initial = inputs.initial if self.sees_start else None
        adjoint, share = tape.sweep(adjoint, to_start=initial is not None)
        gradient = outer.phi + share
        if initial is not None:
            gradient = gradient + torch.func.vjp(initial, phi)[1](adjoint.params)[0]
        return HypergradientResult(outer.loss, gradient, losses + more, state, {"memory": memory})


class Unrolled(Truncated):
    """Reverse mode through all ``steps`` inner steps: the exact hypergradient of Eq. (6).

    ``memory`` is that of :class:`Truncated`.
    """

    def __init__(self, steps: int, *, memory: MemoryPolicy = "auto") -> None:
        super().__init__(steps, steps, memory=memory)

    def __repr__(self) -> str:
        return f"Unrolled(steps={self.steps}, memory={self.memory!r})"


@dataclass(frozen=True)
class Forward(Hypergradient):
    """Forward mode: dθ_t/dφ is updated in each step. It is exact and needs the memory of one step.

    Use it for few outer variables. ``at_most`` limits their number, because thousands would be very slow.
    """

    at_most: int = field(default=256, kw_only=True)

    @property
    def sees_start(self) -> bool:
        return True

    @property
    def trains(self) -> bool:
        return False

    def __call__(self, inputs: HypergradientInput, start: State, phi: Tensor) -> HypergradientResult:
        count = phi.shape[-1]
        if count > self.at_most:
            raise ValueError(
                f"Forward needs at most {self.at_most} outer variables; got {count}. Use Unrolled, or raise at_most."
            )
        dynamics, lead = Dynamics(inputs.dynamics.derivatives.eager(), inputs.dynamics.optimizer), phi.shape[:-1]
        basis = torch.eye(count, dtype=phi.dtype, device=phi.device)
        basis = basis.view((count,) + (1,) * len(lead) + (count,)).expand((count, *lead, count))
        tangents = dynamics.zero(start, count)
        if inputs.initial is not None:
            starts = [torch.func.jvp(inputs.initial, (phi,), (direction.contiguous(),))[1] for direction in basis]
            tangents = tangents._replace(params=torch.stack(starts))
        state, losses = start, []
        for _ in range(self.steps):
            state, loss, recorded = dynamics.record(state, phi, inputs.draws(state.step))
            tangents = dynamics.push(recorded, tangents, basis)
            losses.append(loss)
        outer, adjoint = outer_gradient(inputs, state, phi)
        along = (tangents.params * adjoint.params).sum(-1)
        for name, d_buffer in adjoint.buffers.items():
            along = along + (tangents.buffers[name] * d_buffer).flatten(1 + len(lead)).sum(-1)
        return HypergradientResult(outer.loss, outer.phi + along.movedim(0, -1), losses, state)


def outer_gradient(inputs: HypergradientInput, state: State, phi: Tensor) -> tuple[FullGradient, Cotangent]:
    """First derivatives of the outer loss, and the adjoint of the state after training."""
    outer = inputs.outer.gradients(state.params, state.buffers, phi, inputs.required_outer_batch)
    warn_without_network(outer)
    zero = inputs.dynamics.zero(state)
    return outer, Cotangent(outer.params, zero.moments, outer.buffers)


def warn_without_network(outer: FullGradient) -> None:
    """Warn if only terms of the outer loss that contain φ move φ."""
    if not outer.reaches_network:
        warn(
            "The outer loss has no derivative in the network's parameters, so training does not affect φ, which moves "
            "only by terms of the outer loss that contain it, such as a prior. Do not detach the network's output, and "
            "use a loss that can be differentiated instead of the accuracy."
        )


class _Scoped(Hypergradient):
    """A hypergradient of the whole network or of its last layer, before or after the training steps."""

    scope: Scope
    first: Order

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("scope", self.scope, ("all", "head"))
        check_choice("first", self.first, ("inner", "outer"))

    @property
    def lookahead(self) -> bool:
        return self.first == "outer"

    @property
    def of_head(self) -> bool:
        return self.scope == "head"


@dataclass(frozen=True)
class OneStep(_Scoped):
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
        if self.learning_rate is not None and not self.lookahead:
            raise ValueError(
                "learning_rate must be None with first='inner', where a real step is differentiated; got "
                f"{self.learning_rate}."
            )

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
        head = inputs.head
        outer = head.outer(state, state.params[..., head.at_if_known], phi, inputs.required_outer_batch)
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

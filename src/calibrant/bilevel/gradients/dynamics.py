"""Training as a dynamical system: one step and its transpose, and the reverse sweep through many steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from calibrant.bilevel.gradients.loss_derivatives import Gradient, LossDerivatives, tensor_bytes
from calibrant.bilevel.optimizers.base import Linearization, Moments, Optimizer
from calibrant.data.streams.batch import Batch, Tensors

Draws = Callable[[int], Batch]


class State(NamedTuple):
    """The state of training: parameters, optimiser moments, module buffers, and the number of steps taken."""

    params: Tensor
    moments: Moments
    buffers: Tensors
    step: int

    def map(self, fn: Callable[[Tensor], Tensor]) -> State:
        """Apply ``fn`` to every tensor."""
        return State(
            fn(self.params), tuple(map(fn, self.moments)), {k: fn(b) for k, b in self.buffers.items()}, self.step
        )

    def tensors(self) -> Tensors:
        """All tensors by name, for a checkpoint."""
        moments = {f"moment.{k}": m for k, m in enumerate(self.moments)}
        return {"params": self.params} | moments | {f"buffer.{k}": b for k, b in self.buffers.items()}

    @classmethod
    def of(cls, tensors: Tensors, step: int) -> State:
        """The state with the given :meth:`tensors`; others are left out."""
        moments = named(tensors, "moment.")
        buffers = named(tensors, "buffer.")
        return cls(tensors["params"], tuple(moments[str(k)] for k in range(len(moments))), buffers, step)

    def member(self, index: int) -> State:
        """The state of one member of a population."""
        return self.map(lambda t: t[index])


def named(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The entries whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


Look = Callable[[State, Batch], None]


class Cotangent(NamedTuple):
    """The adjoint of a state. ``buffers`` contains only buffers through which gradient flows."""

    params: Tensor
    moments: Moments
    buffers: Tensors


class Recorded(NamedTuple):
    """One step, with everything that its transpose needs."""

    gradient: Gradient
    at: Linearization


class Dynamics:
    """Training as a map, made of an inner loss and an optimiser."""

    def __init__(self, derivatives: LossDerivatives, optimizer: Optimizer) -> None:
        self.derivatives, self.optimizer = derivatives, optimizer

    def start(self, params: Tensor, buffers: Tensors) -> State:
        """The state before the first step."""
        return State(params, self.optimizer.init(params), buffers, 0)

    def train(
        self, state: State, phi: Tensor, draws: Draws, steps: int, look: Look | None = None
    ) -> tuple[State, list[Tensor]]:
        """Take ``steps`` training steps. Returns the state after them and the loss before each step.

        ``look(state, batch)`` is called before each step.
        """
        losses = []
        for _ in range(steps):
            batch = draws(state.step)
            if look is not None:
                look(state, batch)
            state, loss = self.advance(state, phi, batch)
            losses.append(loss)
        return state, losses

    def advance(self, state: State, phi: Tensor, batch: Batch) -> tuple[State, Tensor]:
        """Take one training step. Returns the state after it and the loss before it."""
        loss, grad, buffers = self.derivatives.gradient(state.params, state.buffers, phi, batch)
        return self._update(state, grad, buffers), loss

    def record(self, state: State, phi: Tensor, batch: Batch) -> tuple[State, Tensor, Recorded]:
        """Take one training step, and record it so that it can be pulled back."""
        linearized = self.derivatives.linearize(state.params, state.buffers, phi, batch)
        after = self._update(state, linearized.grad, linearized.buffers)
        at = Linearization(state.params, state.moments, after.moments, linearized.grad, after.step)
        return after, linearized.loss, Recorded(linearized, at)

    def pull(self, recorded: Recorded, adjoint: Cotangent, *, params: bool = True) -> tuple[Cotangent, Tensor]:
        """The adjoint of the state before a step from the adjoint after it, and the step's share of dF/dφ.

        ``params=False`` is for the first differentiated step, whose starting point does not depend on φ. It saves the
        Hessian-vector product; then only the share of dF/dφ is valid.
        """
        with torch.set_grad_enabled(adjoint.params.requires_grad):
            d_params, d_moments, d_grad = self.optimizer.pull(recorded.at, adjoint.params, adjoint.moments)
            back = recorded.gradient.pull(d_grad, adjoint.buffers, params=params)
            if back.params is not None:
                d_params = d_params + back.params
        return Cotangent(d_params, d_moments, back.buffers), back.phi

    def push(self, recorded: Recorded, tangents: Cotangent, t_phi: Tensor) -> Cotangent:
        """Tangents of the state after a step, from a stack of tangents of the state before it and of φ.

        :meth:`pull` is linear in the adjoint, so its transpose is the derivative of the step.
        """
        seeds = pytree.tree_map(lambda t: torch.zeros_like(t[0]).requires_grad_(), tangents)
        adjoints, along = (pytree.tree_leaves(tree) for tree in (self.pull(recorded, seeds), (tangents, t_phi)))
        live = [k for k, adjoint in enumerate(adjoints) if adjoint.requires_grad]
        leaves, structure = pytree.tree_flatten(seeds)
        pushed = torch.autograd.grad(
            [adjoints[k] for k in live], leaves, [along[k] for k in live], is_grads_batched=True, allow_unused=True
        )
        filled = [torch.zeros_like(t) if p is None else p for p, t in zip(pushed, along[:-1], strict=True)]
        return pytree.tree_unflatten(filled, structure)

    def zero(self, state: State, *lead: int) -> Cotangent:
        """An adjoint of zeros, or a stack of them."""
        buffers = {k: state.buffers[k] for k in self.derivatives.differentiable_buffers}
        shaped_like = Cotangent(state.params, state.moments, buffers)
        return pytree.tree_map(lambda t: t.new_zeros(*lead, *t.shape), shaped_like)

    def _update(self, state: State, grad: Tensor, buffers: Tensors) -> State:
        with torch.no_grad():
            if self.optimizer.clip_norm is not None:
                grad = self.optimizer.clip_(grad.clone())
            params, moments = self.optimizer.update(state.params, state.moments, grad, state.step + 1)
        return State(params, moments, buffers, state.step + 1)


GRAPH_BUDGET = 2 * 1024**3
"""The bytes of kept graphs above which ``memory="auto"`` uses checkpoints on a CPU."""


class Tape:
    """Takes ``count`` inner steps forwards, and then sweeps backwards through them.

    ``"graphs"`` keeps every step's graph. ``"checkpoints"`` keeps every k-th state, k = ⌈√count⌉, and takes the steps
    between them a second time.
    """

    def __init__(self, dynamics: Dynamics, draws: Draws, phi: Tensor, start: State, count: int, memory: str) -> None:
        self.dynamics, self.draws, self.phi, self.start, self.count = dynamics, draws, phi, start, count
        self.stride = math.isqrt(count - 1) + 1
        self.recorded: list[Recorded] = []
        self.kept = None if memory == "graphs" else _Shelf(start, -(-count // self.stride))

    def forward(self) -> tuple[State, list[Tensor]]:
        """Train. Returns the state at the end and the loss before each step."""
        state, losses = self.start, []
        for position in range(self.count):
            if self.kept is None:
                state, loss, recorded = self.dynamics.record(state, self.phi, self.draws(state.step))
                self.recorded.append(recorded)
            else:
                if position % self.stride == 0:
                    self.kept.put(position // self.stride, state)
                state, loss = self.dynamics.advance(state, self.phi, self.draws(state.step))
            losses.append(loss)
        return state, losses

    def sweep(self, adjoint: Cotangent, *, to_start: bool) -> tuple[Cotangent, Tensor]:
        """Sweep back through every step. Returns the adjoint at the start and the sum of the shares of dF/dφ.

        The adjoint at the start is valid only with ``to_start=True``.
        """
        total = torch.zeros_like(self.phi)
        for position, recorded in self._backwards():
            adjoint, share = self.dynamics.pull(recorded, adjoint, params=position > 0 or to_start)
            total += share
            del recorded  # before the next one is made, since two graphs would double the peak
        return adjoint, total

    def _backwards(self) -> Iterator[tuple[int, Recorded]]:
        if self.kept is None:
            while self.recorded:
                yield len(self.recorded) - 1, self.recorded.pop()
            return
        between = _Shelf(self.start, self.stride)
        for begin in reversed(range(0, self.count, self.stride)):
            state, length = self.kept.get(begin // self.stride), min(self.stride, self.count - begin)
            for position in range(length):
                between.put(position, state)
                if position + 1 < length:
                    state, _ = self.dynamics.advance(state, self.phi, self.draws(state.step))
            for position in reversed(range(length)):
                state = between.get(position)
                yield begin + position, self.dynamics.record(state, self.phi, self.draws(state.step))[2]


class _Shelf:
    """Memory for a fixed number of states, allocated at once.

    If states were allocated one by one, between short-lived tensors, the heap would be fragmented and a process would
    hold several times the memory that it uses.
    """

    def __init__(self, like: State, slots: int) -> None:
        self.room = like.map(lambda t: torch.empty((slots, *t.shape), dtype=t.dtype, device=t.device))
        self.steps = [0] * slots

    def put(self, slot: int, state: State) -> None:
        self.steps[slot] = state.step
        self.room.params[slot].copy_(state.params)
        for room, moment in zip(self.room.moments, state.moments, strict=True):
            room[slot].copy_(moment)
        for name, buffer in state.buffers.items():
            self.room.buffers[name][slot].copy_(buffer)

    def get(self, slot: int) -> State:
        return self.room.map(lambda t: t[slot])._replace(step=self.steps[slot])


def step_bytes(dynamics: Dynamics, state: State, phi: Tensor, batch: Batch) -> int:
    """The bytes that a recorded step keeps: its graph, batch and state. The graph is measured once per level."""
    derivatives = dynamics.derivatives
    if derivatives.graph_bytes is None:
        derivatives.graph_bytes = derivatives.measure(state.params, state.buffers, phi, batch)
    return derivatives.graph_bytes + tensor_bytes(
        (state.params, state.moments, state.buffers, batch._replace(seed=None))
    )


def graphs_fit(dynamics: Dynamics, state: State, phi: Tensor, batch: Batch, count: int) -> bool:
    """Whether ``count`` recorded steps fit into :data:`GRAPH_BUDGET` bytes, or into half of the free memory of a GPU.

    The backward sweep needs memory for about two more steps while all of them are kept.
    """
    budget = torch.cuda.mem_get_info(phi.device)[0] // 2 if phi.is_cuda else GRAPH_BUDGET
    return (count + 2) * step_bytes(dynamics, state, phi, batch) <= budget

"""The tape of a reverse sweep, which keeps graphs, states or checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from calibrant.bilevel.dynamics import Cotangent, Draws, Dynamics, Recorded, State
from calibrant.bilevel.footprint import tensor_bytes
from calibrant.data.batch import Batch

GRAPH_BUDGET = 2 * 1024**3
"""The bytes of kept graphs above which ``memory="auto"`` uses checkpoints on a CPU."""


class Tape:
    """Takes ``count`` inner steps forwards, and then sweeps backwards through them.

    ``"graphs"`` keeps every step's graph. ``"states"`` keeps every state and records each step again in the sweep.
    ``"checkpoints"`` keeps every k-th state, k = ⌈√count⌉, and takes the steps between them a second time.
    """

    def __init__(self, dynamics: Dynamics, draws: Draws, phi: Tensor, start: State, count: int, memory: str) -> None:
        self.dynamics, self.draws, self.phi, self.start, self.count = dynamics, draws, phi, start, count
        self.stride = math.isqrt(count - 1) + 1 if memory == "checkpoints" else 1
        self.recorded: list[Recorded] = []
        self.keep_graphs = memory == "graphs"
        self.kept = None if self.keep_graphs else _Shelf(start, -(-count // self.stride))

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
        stretch = _Shelf(self.start, self.stride)
        for begin in reversed(range(0, self.count, self.stride)):
            state, length = self.kept.get(begin // self.stride), min(self.stride, self.count - begin)
            for position in range(length):
                stretch.put(position, state)
                if position + 1 < length:
                    state, _ = self.dynamics.advance(state, self.phi, self.draws(state.step))
            for position in reversed(range(length)):
                state = stretch.get(position)
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
    level = dynamics.level
    if level.graph_bytes is None:
        level.graph_bytes = level.measure(state.params, state.buffers, phi, batch)
    return level.graph_bytes + tensor_bytes((state.params, state.moments, state.buffers, batch._replace(seed=None)))


def graphs_fit(dynamics: Dynamics, state: State, phi: Tensor, batch: Batch, count: int) -> bool:
    """Whether ``count`` recorded steps fit into :data:`GRAPH_BUDGET` bytes, or into half of the free memory of a GPU.

    The backward sweep needs memory for about two more steps while all of them are kept.
    """
    budget = torch.cuda.mem_get_info(phi.device)[0] // 2 if phi.is_cuda else GRAPH_BUDGET
    return (count + 2) * step_bytes(dynamics, state, phi, batch) <= budget

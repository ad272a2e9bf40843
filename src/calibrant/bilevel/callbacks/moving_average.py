"""A moving average of the weights as the result of a run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibrant.bilevel.callbacks.base import Callback
from calibrant.bilevel.gradients.dynamics import State
from calibrant.bilevel.running.run import Run


class MovingAverage(Callback):
    """An exponential moving average of the weights, which becomes the result of the run.

    The k-th update of the average is ``average ← d·average + (1 − d)·θ`` with ``d = min(decay, k/(k + 9))``. The first
    updates forget faster, so the average of a short run does not lag behind. Buffers (BatchNorm's
    statistics) are averaged in the same way, and so is φ with ``outer=True``. Training itself does not change.

    Parameters
    ----------
    decay : float
        Between 0 and 1.
    every : int
        The number of outer steps between two updates of the average.
    start : float
        The share of the run before the first update.
    outer : bool
        Also average φ, for outer variables that belong to the trained network.
    """

    def __init__(self, decay: float = 0.98, *, every: int = 1, start: float = 0.5, outer: bool = False) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must be between 0 and 1; got {decay}.")
        if every < 1 or not 0 <= start < 1:
            raise ValueError(f"every must be at least 1, and start at least 0 and below 1; got {every=} and {start=}.")
        self.decay, self.every, self.start, self.outer = decay, every, start, outer
        self.average: State | None = None
        self.phi: Tensor | None = None
        self.looks = 0

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.average, self.phi, self.looks = None, None, 0

    def on_step(self, run: Run) -> None:
        if run.step % self.every or run.step < self.start * run.outer_steps:
            return
        state, self.looks = run.live_state._replace(moments=()), self.looks + 1
        if self.average is None:
            self.average = state.map(torch.clone)
            self.phi = run.phi.clone() if self.outer else None
            return
        new = 1 - min(self.decay, self.looks / (self.looks + 9))
        averages, values = self.average.tensors(), state.tensors()
        if self.phi is not None:
            averages["phi"], values["phi"] = self.phi, run.phi
        for name, average in averages.items():
            if average.is_floating_point():
                average.lerp_(values[name], new)
            else:
                average.copy_(values[name])

    def on_end(self, run: Run) -> None:
        if self.average is not None:
            run.state = run.state._replace(params=self.average.params, buffers=self.average.buffers)
            run.phi = run.phi if self.phi is None else self.phi

    def state_dict(self) -> dict[str, Any]:
        if self.average is None:
            return {}
        averages = {"looks": self.looks, **self.average.tensors()}
        return averages if self.phi is None else averages | {"phi": self.phi}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.average, self.phi, self.looks = State.of(state, 0), state.get("phi"), int(state["looks"])

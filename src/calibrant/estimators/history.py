"""The recorded losses of all training runs of a fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.bilevel import Callback, History, Run


class Runs(Callback):
    """A callback that keeps one :class:`calibrant.bilevel.History` per run, in order; a checkpoint has the last one."""

    def __init__(self) -> None:
        self.each: list[History] = []

    def on_start(self, run: Run) -> None:
        self.each.append(History())
        self.each[-1].on_start(run)

    def on_step(self, run: Run) -> None:
        self.each[-1].on_step(run)

    def state_dict(self) -> dict[str, Any]:
        return self.each[-1].state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.each[-1].load_state_dict(state)


def as_arrays(history: History) -> dict[str, np.ndarray]:
    """Return one value per outer step: the mean over the networks."""
    names = ("inner_loss", "outer_loss", "gradient_norm")
    return {name: history[name].double().reshape(len(history.rows[name]), -1).mean(1).numpy() for name in names}

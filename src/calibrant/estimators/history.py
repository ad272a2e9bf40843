"""The recorded losses of all training runs of a fit."""

from __future__ import annotations

import numpy as np

from calibrant.bilevel import Callback, History, Run


class Runs(Callback):
    """A callback that keeps one :class:`calibrant.bilevel.History` per run, in order."""

    def __init__(self) -> None:
        self.each: list[History] = []

    def on_start(self, run: Run) -> None:
        self.each.append(History())
        self.each[-1].on_start(run)

    def on_step(self, run: Run) -> None:
        self.each[-1].on_step(run)


def as_arrays(history: History) -> dict[str, np.ndarray]:
    """Return one value per outer step: the mean over the networks."""
    names = ("inner_loss", "outer_loss", "gradient_norm")
    return {name: history[name].double().reshape(len(history.rows[name]), -1).mean(1).numpy() for name in names}

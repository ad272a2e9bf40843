"""The focal parameter γ that a γ-Net gives to each sample: mean and spread by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.plots import style
from calibrant.plots._reading import finite_array


@dataclass(frozen=True)
class GammaByEpoch:
    """Mean, standard deviation and the 5 % and 95 % quantiles of γ over the samples, for each epoch."""

    epoch: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray


def prepare_gamma(history: Sequence[Any] | Any, *, epoch: Any = None) -> GammaByEpoch:
    """Summarise γ of shape (epochs, n), or a sequence with one array per epoch; `epoch` defaults to 1, 2, ..."""
    rows = [finite_array(row, f"γ of entry {i}", (None,)) for i, row in enumerate(history)]
    if not rows:
        raise ValueError("history must hold γ of shape (epochs, n); got no epochs.")
    when = np.arange(1, len(rows) + 1.0) if epoch is None else finite_array(epoch, "epoch", (len(rows),))
    low, high = np.array([np.quantile(row, (0.05, 0.95)) for row in rows]).T
    return GammaByEpoch(when, np.array([row.mean() for row in rows]), np.array([row.std() for row in rows]), low, high)


class GammaDisplay:
    """Mean of γ with a band of one standard deviation, by epoch; several runs can share the axes.

    As in Fig. 3 (c–d) of the second paper. A small spread means that all samples share one γ. Thin lines are the 5 %
    and 95 % quantiles.
    """

    def __init__(self, data: GammaByEpoch, *, name: str | None = None) -> None:
        self.data = data
        self.name = name

    @classmethod
    def from_history(cls, history: Any, *, name: str | None = None, ax: Any = None, **prepare: Any) -> GammaDisplay:
        """Compute by `prepare_gamma` and draw."""
        return cls(prepare_gamma(history, **prepare), name=name).plot(ax)

    def plot(self, ax: Any = None, *, quantiles: bool = True, legend: bool = True) -> GammaDisplay:
        """Draw into `ax`, or into a new figure."""
        d = self.data
        with style.context() as plt:
            ax = style.axes(plt, ax, style.WIDE)
            look = style.next_look(ax)
            prefix = "" if self.name is None else f"{self.name}: "
            ax.plot(d.epoch, d.mean, linewidth=2, label=f"{prefix}mean", gid="model", **look)
            ax.fill_between(
                d.epoch,
                d.mean - d.std,
                d.mean + d.std,
                color=look["color"],
                alpha=0.2,
                linewidth=0,
                label=f"{prefix}± one standard deviation",
            )
            if quantiles:
                thin = {"color": look["color"], "linewidth": 0.8, "alpha": 0.8}
                ax.plot(d.epoch, d.low, **thin, label=f"{prefix}5 % and 95 % quantiles")
                ax.plot(d.epoch, d.high, **thin)
            ax.set(xlabel="epoch", ylabel="focal parameter γ")
            ax.margins(x=0.01)
            if legend:
                style.add_legend(ax, below=False)
        self.ax_, self.figure_ = ax, ax.figure
        return self

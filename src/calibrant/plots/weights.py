"""Learned sample weights: their history, and their final values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.plots import style
from calibrant.plots._reading import finite_array, flags


@dataclass(frozen=True)
class WeightHistory:
    """The numbers of a weight-history plot.

    Attributes
    ----------
    epoch : array of shape (steps,)
        Position of each step on the horizontal axis, shape (steps,).
    history : array of shape (steps, n)
        Weight of each sample at each step, shape (steps, n).
    misclassified : array of shape (n,)
        Samples that the final model gets wrong, shape (n,).
    mean_right, mean_wrong : arrays of shape (steps,)
        Mean weight of the two groups at each step; NaN for an empty group.
    """

    epoch: np.ndarray
    history: np.ndarray
    misclassified: np.ndarray
    mean_right: np.ndarray
    mean_wrong: np.ndarray


def prepare_weight_history(history: Any, misclassified: Any, *, epochs_per_step: float = 1) -> WeightHistory:
    """Collect weights of shape (steps, n); `epochs_per_step` scales the axis (10 in Fig. 3 of the first paper)."""
    values = finite_array(history, "history", (None, None))
    wrong = flags(misclassified, "misclassified", values.shape[1])
    means = [
        values[:, group].mean(axis=1) if group.any() else np.full(len(values), np.nan) for group in (~wrong, wrong)
    ]
    return WeightHistory(np.arange(len(values)) * epochs_per_step, values, wrong, *means)


class WeightHistoryDisplay:
    """Weight of every sample over training, misclassified ones in red (Fig. 3, left, of Sanguin et al. 2024).

    Thick lines are the means of the two groups.
    """

    def __init__(self, data: WeightHistory, *, name: str | None = None) -> None:
        self.data = data
        self.name = name

    @classmethod
    def from_history(
        cls, history: Any, misclassified: Any, *, name: str | None = None, ax: Any = None, **prepare: Any
    ) -> WeightHistoryDisplay:
        """Compute by `prepare_weight_history` and draw."""
        return cls(prepare_weight_history(history, misclassified, **prepare), name=name).plot(ax)

    def plot(self, ax: Any = None, *, legend: bool = True) -> WeightHistoryDisplay:
        """Draw into `ax`, or into a new figure."""
        d, new = self.data, ax is None
        with style.context() as plt:
            from matplotlib.collections import LineCollection

            ax = style.axes(plt, ax, (5.4, 4.2))
            # More lines are drawn fainter, so that bundles stay visible for any number of samples.
            faint = float(np.clip(40 / d.history.shape[1], 0.06, 0.6))
            groups = (
                (~d.misclassified, style.INK, faint, d.mean_right, "right", "-"),
                (d.misclassified, style.MISCLASSIFIED, min(1.0, 3.5 * faint), d.mean_wrong, "misclassified", "--"),
            )
            for group, colour, alpha, mean, label, dash in groups:
                if not group.any():
                    continue
                paths = [np.column_stack([d.epoch, path]) for path in d.history[:, group].T]
                ax.add_collection(
                    LineCollection(paths, colors=colour, alpha=alpha, linewidths=0.6, rasterized=len(paths) > 200)
                )
                edge = [_outline()]
                ax.plot(
                    d.epoch,
                    mean,
                    color=colour,
                    linewidth=2.2,
                    linestyle=dash,
                    path_effects=edge,
                    label=f"{label} ({int(group.sum())}), mean {mean[-1]:.2f} at the end",
                )
            span = d.history.max() - d.history.min()
            pad = 0.03 * (span if span > 0 else 1)
            ax.set(xlabel="epoch", ylabel="sample weight", ylim=(d.history.min() - pad, d.history.max() + pad))
            ax.margins(x=0.01)
            if self.name is not None:
                ax.set_title(self.name)
            if legend:
                style.add_legend(ax, below=new)
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _outline() -> Any:
    from matplotlib.patheffects import withStroke

    return withStroke(linewidth=4, foreground="white")


@dataclass(frozen=True)
class WeightMap:
    """The numbers of a weight map: positions (n, 2), final weights (n,), misclassified (n,)."""

    X: np.ndarray
    weight: np.ndarray
    misclassified: np.ndarray


def prepare_weight_map(X: Any, weight: Any, misclassified: Any) -> WeightMap:
    """Collect positions and final weights; of a history (steps, n) the last step is used."""
    points = finite_array(X, "X", (None, 2))
    shape = np.shape(weight)
    values = finite_array(weight, "weight", (None,) * (len(shape) - 1) + (len(points),))
    if values.ndim > 2:
        raise ValueError(f"weight must have shape (n,) or (steps, n); got {values.shape}.")
    last = values if values.ndim == 1 else values[-1]
    return WeightMap(points, last, flags(misclassified, "misclassified", len(points)))


class WeightMapDisplay:
    """Final weights over the input space: dark samples count little, misclassified ones have a red contour.

    Fig. 3, right, of Sanguin et al. 2024.
    """

    def __init__(self, data: WeightMap, *, name: str | None = None) -> None:
        self.data = data
        self.name = name

    @classmethod
    def from_weights(
        cls, X: Any, weight: Any, misclassified: Any, *, name: str | None = None, ax: Any = None
    ) -> WeightMapDisplay:
        """Compute by `prepare_weight_map` and draw."""
        return cls(prepare_weight_map(X, weight, misclassified), name=name).plot(ax)

    def plot(self, ax: Any = None, *, colorbar: bool = True, legend: bool = True) -> WeightMapDisplay:
        """Draw into `ax`, or into a new figure."""
        d, new = self.data, ax is None
        limits = {"vmin": min(0.0, d.weight.min()), "vmax": max(1.0, d.weight.max()), "cmap": "cividis"}
        with style.context() as plt:
            ax = style.axes(plt, ax, (5.0, 4.3))
            right, wrong = ~d.misclassified, d.misclassified
            # Misclassified samples are drawn last, so that their contours are not covered.
            points = ax.scatter(*d.X[right].T, c=d.weight[right], s=20, linewidth=0, **limits)
            ax.scatter(
                *d.X[wrong].T,
                c=d.weight[wrong],
                s=26,
                edgecolor=style.MISCLASSIFIED,
                linewidth=1.2,
                **limits,
                label=f"misclassified ({int(wrong.sum())})",
            )
            if colorbar:
                bar = ax.figure.colorbar(points, ax=ax, label="final sample weight", shrink=0.95)
                bar.outline.set_visible(False)
            ax.set(xlabel="$x_1$", ylabel="$x_2$")
            if self.name is not None:
                ax.set_title(self.name)
            if legend and wrong.any():
                style.add_legend(ax, below=new)
        self.ax_, self.figure_ = ax, ax.figure
        return self

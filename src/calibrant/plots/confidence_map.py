"""Confidence over a two-dimensional input space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.base.inputs import as_tensor, check_probs
from calibrant.base.labels import class_names
from calibrant.plots import style
from calibrant.plots.display import predict_proba_of


@dataclass(frozen=True)
class ConfidenceMap:
    """The numbers of a confidence map.

    Attributes
    ----------
    x, y : arrays
        Coordinates of the columns and rows of the map.
    confidence : array of shape (rows, columns)
        Largest class probability at (x[j], y[i]), shape (rows, columns).
    share_above, threshold : float
        Share of the map whose confidence exceeds the threshold.
    X, labels : arrays, or None
        The samples drawn over the map, shape (n, 2) and (n,), or None.
    chance : float
        1/C, the smallest possible confidence.
    """

    x: np.ndarray
    y: np.ndarray
    confidence: np.ndarray
    share_above: float
    threshold: float
    X: np.ndarray
    labels: np.ndarray | None
    chance: float


def prepare_confidence_map(
    predict_proba: Callable[[np.ndarray], Any],
    X: Any,
    labels: Any = None,
    *,
    resolution: int = 200,
    margin: float = 0.08,
    threshold: float = 0.9,
) -> ConfidenceMap:
    """Evaluate a classifier on a grid around the samples.

    Parameters
    ----------
    predict_proba : callable
        Takes a float64 array of shape (m, 2), returns probabilities of shape (m, C), array or tensor.
    X, labels : arrays
        Samples of shape (n, 2) that set the extent, and their classes (any values; used for markers only).
    resolution, margin : int and float
        Grid points along each side, and how far the map extends beyond the samples, as a share of their range.
    threshold : float
        The share of the map above it is returned. 0.9 is the region of highest confidence in Sanguin et al. 2024, Fig.
        1.
    """
    points = as_tensor(X, "X").double().cpu().numpy()
    if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
        raise ValueError(f"X must have shape (n, 2) with at least one row; got {points.shape}.")
    if not np.isfinite(points).all():
        raise ValueError("X must be finite; got NaN or infinite values.")
    if resolution < 2:
        raise ValueError(f"resolution must be at least 2; got {resolution}.")
    low, high = points.min(axis=0), points.max(axis=0)
    pad = margin * np.where(high > low, high - low, 1.0)
    x, y = np.linspace(low - pad, high + pad, resolution).T
    grid = np.stack(np.meshgrid(x, y), axis=-1)
    probs = check_probs(predict_proba(grid.reshape(-1, 2)))
    confidence = probs.double().amax(dim=1).cpu().numpy().reshape(resolution, resolution)
    names = None if labels is None else class_names(labels)
    if names is not None and names.shape != (len(points),):
        raise ValueError(f"labels must be 1-D with {len(points)} entries; got shape {names.shape}.")
    above = float((confidence > threshold).mean())
    return ConfidenceMap(x, y, confidence, above, threshold, points, names, 1 / probs.shape[1])


class ConfidenceMapDisplay:
    """Confidence as background colour, with the samples on top (Fig. 1 of Sanguin et al. 2024).

    The thin line encloses confidence above the threshold; the title gives this share of the map.
    """

    def __init__(self, data: ConfidenceMap, *, name: str | None = None) -> None:
        self.data = data
        self.name = name

    @classmethod
    def from_function(
        cls,
        predict_proba: Callable[[np.ndarray], Any],
        X: Any,
        labels: Any = None,
        *,
        name: str | None = None,
        ax: Any = None,
        **prepare: Any,
    ) -> ConfidenceMapDisplay:
        """Compute by `prepare_confidence_map` and draw."""
        return cls(prepare_confidence_map(predict_proba, X, labels, **prepare), name=name).plot(ax)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any = None, *, name: str | None = None, ax: Any = None, **prepare: Any
    ) -> ConfidenceMapDisplay:
        """Draw for a fitted classifier with two features and `predict_proba`."""
        name = type(estimator).__name__ if name is None else name
        return cls.from_function(predict_proba_of(estimator), X, y, name=name, ax=ax, **prepare)

    def plot(
        self, ax: Any = None, *, colorbar: bool = True, samples: bool = True, n_samples: int = 400
    ) -> ConfidenceMapDisplay:
        """Draw into `ax`, or into a new figure, with at most `n_samples` evenly spread samples."""
        d = self.data
        with style.context() as plt:
            ax = style.axes(plt, ax, (5.0, 4.0))
            image = ax.pcolormesh(
                d.x, d.y, d.confidence, cmap="viridis", vmin=d.chance, vmax=1, shading="nearest", rasterized=True
            )
            if d.confidence.min() < d.threshold < d.confidence.max():
                ax.contour(d.x, d.y, d.confidence, [d.threshold], colors=style.INK, linewidths=0.8)
            if samples:
                self._samples(ax, n_samples)
            if colorbar:
                bar = ax.figure.colorbar(image, ax=ax, label="confidence", shrink=0.95)
                bar.outline.set_visible(False)
            share = f"{d.share_above:.0%} of the map above {d.threshold:g}"
            ax.set(xlim=(d.x[0], d.x[-1]), ylim=(d.y[0], d.y[-1]), xlabel="$x_1$", ylabel="$x_2$")
            ax.set_title(share if self.name is None else f"{self.name}\n{share}")
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _samples(self, ax: Any, n_samples: int) -> None:
        d = self.data
        rows = np.unique(np.linspace(0, len(d.X) - 1, min(n_samples, len(d.X))).round().astype(int))
        labels = np.zeros(len(d.X), int) if d.labels is None else d.labels
        for position, label in enumerate(np.unique(labels)):
            points = d.X[rows][labels[rows] == label]
            marker = style.MARKERS[position % len(style.MARKERS)]
            look = {"marker": marker, "facecolor": "white", "edgecolor": "black", "linewidth": 0.6, "alpha": 0.9}
            ax.scatter(*points.T, s=13, **look)

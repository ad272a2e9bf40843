"""Figure 3 of the first paper: weights of the samples over training, and their final values over the inputs.

Misclassified samples are red.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.plots import style

MISCLASSIFIED = "#D7191C"


def draw_weight_history(ax: Any, epochs: np.ndarray, history: np.ndarray, misclassified: np.ndarray) -> None:
    """Draw the weight of each sample, history of shape (steps, n); thick lines are the means of the two groups."""
    with style.context():
        from matplotlib.collections import LineCollection
        from matplotlib.patheffects import withStroke

        # More lines are drawn fainter, so that bundles stay visible for any number of samples.
        faint = float(np.clip(40 / history.shape[1], 0.06, 0.6))
        groups = (
            (~misclassified, style.INK, faint, "right", "-"),
            (misclassified, MISCLASSIFIED, min(1.0, 3.5 * faint), "misclassified", "--"),
        )
        for group, colour, alpha, label, dash in groups:
            if not group.any():
                continue
            paths = [np.column_stack([epochs, path]) for path in history[:, group].T]
            ax.add_collection(
                LineCollection(paths, colors=colour, alpha=alpha, linewidths=0.6, rasterized=len(paths) > 200)
            )
            mean = history[:, group].mean(axis=1)
            ax.plot(
                epochs,
                mean,
                color=colour,
                linewidth=2.2,
                linestyle=dash,
                path_effects=[withStroke(linewidth=4, foreground="white")],
                label=f"{label} ({int(group.sum())}), mean {mean[-1]:.2f} at the end",
            )
        span = history.max() - history.min()
        pad = 0.03 * (span if span > 0 else 1)
        ax.set(xlabel="epoch", ylabel="sample weight", ylim=(history.min() - pad, history.max() + pad))
        ax.margins(x=0.01)
        style.add_legend(ax, below=False)


def draw_weight_map(ax: Any, inputs: np.ndarray, weights: np.ndarray, misclassified: np.ndarray) -> None:
    """Draw the final weights over inputs of shape (n, 2): dark samples count little."""
    limits = {"vmin": min(0.0, weights.min()), "vmax": max(1.0, weights.max()), "cmap": "cividis"}
    right, wrong = ~misclassified, misclassified
    with style.context():
        # Misclassified samples are drawn last, so that their contours are not covered.
        points = ax.scatter(*inputs[right].T, c=weights[right], s=20, linewidth=0, **limits)
        ax.scatter(
            *inputs[wrong].T,
            c=weights[wrong],
            s=26,
            edgecolor=MISCLASSIFIED,
            linewidth=1.2,
            **limits,
            label=f"misclassified ({int(wrong.sum())})",
        )
        bar = ax.figure.colorbar(points, ax=ax, label="final sample weight", shrink=0.95)
        bar.outline.set_visible(False)
        ax.set(xlabel="$x_1$", ylabel="$x_2$")
        if wrong.any():
            style.add_legend(ax, below=False)

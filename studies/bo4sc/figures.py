"""Figures 1 to 3 of the first paper: collect their numbers from trained models, and draw them from these numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.base.atomic_write import write_text_whole
from calibrant.plots import (
    ConfidenceHistogramDisplay,
    ConfidenceMap,
    ConfidenceMapDisplay,
    ModelsDisplay,
    ReliabilityDisplay,
    prepare_confidence_histogram,
    prepare_reliability,
    style,
)
from studies.common.records import Prepared, misclassified, predict, reference
from studies.common.runs import FinishedRun
from studies.common.store import BESIDE, Store

SHOWN = ("standard", "isotonic", "bo4sc", "self-calibrated")
"""The paper's three methods and ours."""
MAP_SET, RELIABILITY_SET, WEIGHTS_SET = "blobs-1.7", "spirals-3.5", "blobs-1.7"
HISTORY_ROWS = 60
TRUTH = "exact posterior"
THRESHOLD = 0.9
MISCLASSIFIED = "#D7191C"
"""The colour of misclassified samples in Figure 3."""

Numbers = dict[str, Any]


def collect(run: FinishedRun[Prepared]) -> Numbers:
    """The figure data of one run; empty if the run failed or no figure shows it."""
    dataset = run.prepared.dataset
    if run.method not in SHOWN or run.fitted.failure:
        return {}
    shown = {
        "map": (dataset == MAP_SET, confidence_map),
        "reliability": (dataset == RELIABILITY_SET, reliability),
        "weights": (dataset == WEIGHTS_SET and run.method == "bo4sc", weight_history),
    }
    about = {"dataset": dataset, "seed": run.prepared.seed, "classes": run.prepared.problem.n_classes}
    return {figure: {**about, **numbers_of(run)} for figure, (wanted, numbers_of) in shown.items() if wanted}


def of_store(store: Store) -> Numbers:
    """The data of all figures, from the lowest seed that has any; models in the order of ``SHOWN``."""
    lines = [line for line in store.current.values() if BESIDE in line]
    first = min((line["key"]["seed"] for line in lines), default=0)
    lines = [line for line in lines if line["key"]["seed"] == first]
    numbers: Numbers = {}
    for line in sorted(lines, key=lambda line: SHOWN.index(line["key"]["method"])):
        for figure, data in line[BESIDE].items():
            whole = numbers.setdefault(figure, dict(data))
            for models in {"confidence", "models"} & data.keys():
                whole[models] = {**whole[models], **data[models]}
    if "map" in numbers:
        maps = numbers["map"]["confidence"]
        maps[TRUTH] = maps.pop(TRUTH)  # last
    return numbers


def confidence_map(run: FinishedRun[Prepared]) -> Numbers:
    """Fig. 1: confidence on a grid, of one model and of the exact posterior."""
    truth = reference(run.prepared.dataset)
    grid = truth.grid
    assert grid is not None
    maps = {run.method: predict(run.fitted, run.prepared.scale(grid)).confidence, TRUTH: truth.truth(grid).max(1)}
    x, y = run.prepared.problem.test
    return {
        "x": _rounded(truth.x, 4),
        "y": _rounded(truth.y, 4),
        "confidence": {name: _rounded(values, 3) for name, values in maps.items()},
        "samples": _rounded(x[:300], 3),
        "labels": y[:300].tolist(),
    }


def reliability(run: FinishedRun[Prepared]) -> Numbers:
    """Fig. 2: the confidence of each test sample, and whether its prediction is right."""
    x, y = run.prepared.problem.test
    output = predict(run.fitted, run.prepared.scale(x))
    correct = (output.classes == y).astype(int).tolist()
    return {"models": {run.method: {"confidence": _rounded(output.confidence, 5), "correct": correct}}}


def weight_history(run: FinishedRun[Prepared]) -> Numbers:
    """Fig. 3: every training sample's weight over training, and whether the final model gets it wrong."""
    settings: Any = run.settings
    history = np.asarray(run.fitted.extras["sample_weights_history"])
    if settings.epochs is not None:  # other members of its population may train longer
        history = history[: -(-settings.epochs // settings.steps) + 1]
    every = max(1, -(-(len(history) - 1) // HISTORY_ROWS))
    rows = np.arange(len(history) - 1, -1, -every)[::-1]  # counted from the end, to include the final weights
    return {
        "epochs": (rows * settings.steps).tolist(),
        "history": _rounded(history[rows], 3),
        "misclassified": misclassified(run.fitted, run.prepared.task.train).astype(int).tolist(),
        "samples": _rounded(run.prepared.problem.train[0], 3),
    }


def path_of(results: Path) -> Path:
    """The path of the figure data: `results.figures.json` beside `results.json`."""
    return results.with_suffix(".figures.json")


def write(numbers: Numbers, results: Path) -> Path:
    """Write the figure data beside the result file."""
    path = path_of(results)
    write_text_whole(path, json.dumps(numbers, separators=(",", ":")) + "\n")
    return path


def read(results: Path) -> Numbers:
    """Read the figure data of a store or a result file; empty if there is no such file."""
    if results.suffix == ".jsonl":
        return of_store(Store(results))
    path = path_of(results)
    numbers: Numbers = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return numbers


def draw_maps(numbers: Numbers) -> Any:
    """Fig. 1: one panel per model, the exact posterior last, with one colour scale."""
    x, y = np.array(numbers["x"]), np.array(numbers["y"])
    samples, labels = np.array(numbers["samples"]), np.array(numbers["labels"])
    with style.context() as plt:
        maps = numbers["confidence"]
        figure, axes = plt.subplots(
            1, len(maps), figsize=(2.7 * len(maps) + 0.6, 3.2), layout="constrained", squeeze=False, sharey=True
        )
        for position, (name, flat) in enumerate(maps.items()):
            confidence = np.array(flat).reshape(len(y), len(x))
            share = float((confidence > THRESHOLD).mean())
            data = ConfidenceMap(x, y, confidence, share, THRESHOLD, samples, labels, chance=1 / numbers["classes"])
            last = position == len(maps) - 1
            ConfidenceMapDisplay(data, name=name).plot(axes[0, position], colorbar=last, n_samples=150)
            if position:
                axes[0, position].set_ylabel("")
    return figure


def draw_reliability(numbers: Numbers) -> Any:
    """Fig. 2: confidence histograms above reliability diagrams."""
    reliability, histogram = {}, {}
    for name, model in numbers["models"].items():
        pairs: dict[str, Any] = {
            "confidence": np.array(model["confidence"]),
            "correct": np.array(model["correct"], dtype=bool),
        }
        reliability[name] = ReliabilityDisplay(prepare_reliability(**pairs, bins=10))
        bars = replace(prepare_confidence_histogram(**pairs), chance=1 / numbers["classes"])
        histogram[name] = ConfidenceHistogramDisplay(bars, name=name)
    return ModelsDisplay(reliability, histogram).plot().figure_


def draw_weights(numbers: Numbers) -> Any:
    """Fig. 3: the history of the weights, and their final values over the inputs."""
    history, wrong = np.array(numbers["history"]), np.array(numbers["misclassified"], dtype=bool)
    with style.context() as plt:
        figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 4.3), layout="constrained")
        # Rows are counted from the end, so the first row need not be epoch 0.
        draw_weight_history(left, np.array(numbers["epochs"]), history, wrong)
        draw_weight_map(right, np.array(numbers["samples"]), history[-1], wrong)
    return figure


def draw_weight_history(ax: Any, epochs: np.ndarray, history: np.ndarray, misclassified: np.ndarray) -> None:
    """Draw the weight of each sample, history of shape (steps, n); thick lines are the means of the two groups."""
    with style.context():
        from matplotlib.collections import LineCollection
        from matplotlib.patheffects import withStroke

        # More lines are drawn fainter, so that bundles stay visible for any number of samples.
        faint = float(np.clip(40 / history.shape[1], 0.06, 0.6))
        edge = [withStroke(linewidth=4, foreground="white")]
        for group, colour, alpha, name, dash in (
            (~misclassified, style.INK, faint, "right", "-"),
            (misclassified, MISCLASSIFIED, min(1.0, 3.5 * faint), "misclassified", "--"),
        ):
            if not group.any():
                continue
            paths = [np.column_stack([epochs, path]) for path in history[:, group].T]
            ax.add_collection(
                LineCollection(paths, colors=colour, alpha=alpha, linewidths=0.6, rasterized=len(paths) > 200)
            )
            mean = history[:, group].mean(axis=1)
            label = f"{name} ({int(group.sum())}), mean {mean[-1]:.2f} at the end"
            ax.plot(epochs, mean, color=colour, linewidth=2.2, linestyle=dash, path_effects=edge, label=label)
        span = history.max() - history.min()
        pad = 0.03 * (span if span > 0 else 1)
        ax.set(xlabel="epoch", ylabel="sample weight", ylim=(history.min() - pad, history.max() + pad))
        ax.margins(x=0.01)
        style.add_legend(ax, below=False)


def draw_weight_map(ax: Any, inputs: np.ndarray, weights: np.ndarray, misclassified: np.ndarray) -> None:
    """Draw the final weights over inputs of shape (n, 2): dark samples count little."""
    limits = {"vmin": min(0.0, weights.min()), "vmax": max(1.0, weights.max()), "cmap": "cividis"}
    right, wrong = ~misclassified, misclassified
    contour = {"edgecolor": MISCLASSIFIED, "linewidth": 1.2, "label": f"misclassified ({int(wrong.sum())})"}
    with style.context():
        # Misclassified samples are drawn last, so that their contours are not covered.
        points = ax.scatter(*inputs[right].T, c=weights[right], s=20, linewidth=0, **limits)
        ax.scatter(*inputs[wrong].T, c=weights[wrong], s=26, **contour, **limits)
        bar = ax.figure.colorbar(points, ax=ax, label="final sample weight", shrink=0.95)
        bar.outline.set_visible(False)
        ax.set(xlabel="$x_1$", ylabel="$x_2$")
        if wrong.any():
            style.add_legend(ax, below=False)


FIGURES: dict[str, tuple[Callable[[Numbers], Any], str]] = {
    "map": (
        draw_maps,
        "confidence over the input space. The line encloses confidence above 0.9. The last panel is the exact "
        "posterior.",
    ),
    "reliability": (
        draw_reliability,
        "confidence histograms and reliability diagrams (10 bins). Isotonic regression of the confidence can give "
        "values below chance; the maximum of class probabilities cannot.",
    ),
    "weights": (
        draw_weights,
        "BO4SC's sample weights during training and at the end. Misclassified training samples are red.",
    ),
}
"""Figures 1 to 3 by the name of their numbers, with their captions."""


def _rounded(values: Any, digits: int) -> list[Any]:
    rounded: list[Any] = np.round(np.asarray(values, dtype=float), digits).tolist()
    return rounded

"""Draw every plot of calibrant.plots on synthetic data: `python examples/plots_gallery.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from scipy.special import softmax

from calibrant import plots
from calibrant.selective import threshold_for_risk


def five_blobs(generator: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Five Gaussian classes in the plane; returns X, labels and the exact posterior's logits."""
    centres = np.random.RandomState(133).uniform(-10, 10, (5, 2))
    labels = generator.integers(0, 5, n)
    X = centres[labels] + generator.normal(0, 1.7, (n, 2))
    return X, labels, posterior_logits(X)


def posterior_logits(X: np.ndarray) -> np.ndarray:
    centres = np.random.RandomState(133).uniform(-10, 10, (5, 2))
    return -((X[:, None] - centres) ** 2).sum(axis=2) / (2 * 1.7**2)


def draw_all(folder: Path) -> None:
    generator = np.random.default_rng(0)
    X, labels, logits = five_blobs(generator, 2000)
    # Scaling the logits up makes a model over-confident, and scaling them down makes it under-confident.
    models = {
        "over-confident": softmax(2.2 * logits, axis=1),
        "calibrated": softmax(logits, axis=1),
        "under-confident": softmax(0.45 * logits, axis=1),
    }
    figures = {}
    for name, probs in models.items():
        figures[f"reliability-{name}"] = plots.ReliabilityDisplay.from_predictions(probs, labels, name=name)
    over = models["over-confident"]
    figures["reliability-100-bins"] = plots.ReliabilityDisplay.from_predictions(over, labels, bins=100)
    figures["reliability-equal-mass"] = plots.ReliabilityDisplay.from_predictions(over, labels, scheme="mass")
    figures["histogram"] = plots.ConfidenceHistogramDisplay.from_predictions(over, labels, name="over-confident")
    figures["models"] = plots.ModelsDisplay.from_predictions({name: (probs, labels) for name, probs in models.items()})

    smooth = risk = sweep = None
    for name, probs in models.items():
        shared = None if smooth is None else smooth.ax_
        smooth = plots.SmoothReliabilityDisplay.from_predictions(probs, labels, name=name, ax=shared, band=False)
        shared = None if sweep is None else sweep.axes_
        sweep = plots.BinSweepDisplay.from_predictions(probs, labels, name=name, ax=shared)
    noisy = softmax(logits + generator.normal(0, 4, logits.shape), axis=1)
    for name, probs in {"exact posterior": models["calibrated"], "noisy logits": noisy}.items():
        shared = None if risk is None else risk.ax_
        risk = plots.RiskCoverageDisplay.from_predictions(probs, labels, name=name, ax=shared)
    figures |= {"smooth": smooth, "bin-sweep": sweep, "risk-coverage": risk}
    figures["smooth-one"] = plots.SmoothReliabilityDisplay.from_predictions(over, labels)
    exact = models["calibrated"]
    pair = exact.max(axis=1), exact.argmax(axis=1) == labels
    rule = threshold_for_risk(*pair, 0.05)
    print(rule)
    bounded = plots.prepare_risk_coverage(exact, labels, level=0.95)
    figures["risk-coverage-bound"] = plots.RiskCoverageDisplay(bounded, name="exact posterior").plot(rule=rule)
    counts = plots.prepare_confidence_histogram(exact, labels)
    figures["histogram-window"] = plots.ConfidenceHistogramDisplay(counts).plot(window=rule.window)

    maps, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for ax, (name, factor) in zip(axes, {"over-confident": 2.2, "calibrated": 1}.items(), strict=True):
        plots.ConfidenceMapDisplay.from_function(
            lambda points, factor=factor: softmax(factor * posterior_logits(points), axis=1),
            X[:400],
            labels[:400],
            name=name,
            ax=ax,
        )
    figures["confidence-map"] = maps

    for name, figure in figures.items():
        svg, png = plots.save_figure(figure, folder / name)
        print(svg, png)
    plt.close("all")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/plots_gallery.py FOLDER")
    draw_all(Path(sys.argv[1]))

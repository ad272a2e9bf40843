"""Search for generators of blobs and spirals that give the cells that the first paper prints for Standard.

``python -m studies.bo4sc.data_search`` writes ``results/bo4sc-data.json``. Standard's four printed cells
(accuracy and ECE at both widths) alone choose; isotonic's and BO4SC's cells remain as a test.

1. Bayes accuracy discards generators out of reach: a network cannot be more accurate, and loses only a few points.
2. Standard (two hidden layers of 64 units, Adam at 0.02) trains on some blobs and on all remaining spirals. Its cells
   are read after several numbers of epochs, because the paper does not state Standard's. For blobs, a linear fit
   predicts the cells of all other seeds from the two Bayes accuracies.
3. The distance of the printed cells from the mean cells is Mahalanobis's, over the spread of single splits. Under the
   right generator its square has a χ² distribution with 4 degrees of freedom. A generator fits if p > 0.05 for some
   number of epochs.
4. The best and the most common generators train again, on more splits.

A split deals the 2,000 samples at random into 700, 300 and 1,000; both widths of a split share the deal.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import chi2
from sklearn.datasets import make_blobs

from calibrant import metrics
from calibrant.data.scaling import fit_scaling
from calibrant.methods import Samples, Standard, Task
from studies.bo4sc.search import trajectories
from studies.bo4sc.table1 import PAPER
from studies.common.shared import made
from studies.report import write_results

SAMPLES = 2000
BLOB_SEEDS = range(1001)
TURNS = (1.0, 1.5, 1.75, 2.0, 13 / 6, 2.5, 3.0)
"""Turns of a spiral; 13/6 is the 780° of a widely copied function."""
RADII = ((2.0, 0.0), (2.0, 1.0), (2.0, math.pi), (2.5, 0.0), (3.0, 0.0), (3.0, 1.0), (3.0, math.pi), (4.0, 0.0))
"""Slope a and offset b of the radius aθ + b."""
ENDS = (10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0)
"""Outer radius of spirals that grow linearly from zero, as in `np.linspace(0, 20, n)`."""
Sample = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Blobs:
    """`make_blobs(2000, centers=5, cluster_std=width, random_state=seed)` of scikit-learn."""

    seed: int

    @property
    def name(self) -> str:
        """What the author would have typed."""
        return f"make_blobs, random_state={self.seed}"

    def draw(self, width: float, seed: int = 0) -> Sample:
        """The set; ``seed`` has no effect, because an author draws it once."""
        inputs, labels = make_blobs(SAMPLES, centers=5, cluster_std=width, random_state=self.seed)
        return inputs, labels

    def bayes_accuracy(self, width: float) -> float:
        """Accuracy of the exact posterior, the nearest centre, on these 2,000 samples."""
        inputs, labels, centres = make_blobs(
            SAMPLES, centers=5, cluster_std=width, random_state=self.seed, return_centers=True
        )
        return float((np.square(inputs[:, None] - centres).sum(2).argmin(1) == labels).mean())


@dataclass(frozen=True)
class Spirals:
    """Two spirals, of radius ±(aθ + b), with Gaussian noise on each axis or on the radius.

    The angle is 2π·turns·u or 2π·turns·√u with u uniform; the root gives equal density along the arms.
    """

    a: float
    b: float
    turns: float
    angle: Literal["root", "uniform"]
    noise: Literal["axes", "radius"]

    @property
    def name(self) -> str:
        """The form in words."""
        offset = {0.0: "", math.pi: " + π"}.get(self.b, f" + {self.b:g}")
        angle = f"2π·{self.turns:.3g}·{'√u' if self.angle == 'root' else 'u'}"
        return f"radius {self.a:.3g}θ{offset}, θ = {angle}, noise on the {self.noise}"

    def draw(self, width: float, seed: int = 0) -> Sample:
        """A new sample for each seed: the paper's seed is unknown and, unlike for blobs, moves no centre."""
        generator = np.random.RandomState(seed)
        labels = np.repeat((0, 1), SAMPLES // 2)
        angle = self._angle(generator.rand(SAMPLES))
        radius = self.a * angle + self.b + (width * generator.randn(SAMPLES) if self.noise == "radius" else 0.0)
        inputs = _points(radius, angle) * np.where(labels == 0, 1, -1)[:, None]
        return inputs + (width * generator.randn(SAMPLES, 2) if self.noise == "axes" else 0.0), labels

    def bayes_accuracy(self, width: float, samples: int = 2) -> float:
        """Accuracy of the exact posterior on a few samples of 2,000."""
        density = self._on_axes if self.noise == "axes" else self._on_radius
        drawn = [self.draw(width, seed) for seed in range(samples)]
        right = [(density(x, width, -1) > density(x, width, 1)) == y for x, y in drawn]
        return float(np.mean(right))

    def _angle(self, u: np.ndarray) -> np.ndarray:
        return 2 * math.pi * self.turns * (np.sqrt(u) if self.angle == "root" else u)

    def _on_axes(self, x: np.ndarray, width: float, sign: int, nodes: int = 400) -> np.ndarray:
        """Logarithm of a class's density up to a shared constant: a mean over points of its curve."""
        angle = self._angle((np.arange(nodes) + 0.5) / nodes)
        curve = sign * _points(self.a * angle + self.b, angle)
        logs: np.ndarray = np.logaddexp.reduce((x @ curve.T - np.square(curve).sum(1) / 2) / width**2, axis=1)
        return logs

    def _on_radius(self, x: np.ndarray, width: float, sign: int) -> np.ndarray:
        """A class's density up to a factor that both share: a sum over the turns, and over noise beyond the centre."""
        direction, distance = np.arctan2(x[:, 1], x[:, 0]), np.hypot(*x.T)
        longest, total = 2 * math.pi * self.turns, np.zeros(len(x))
        for half, turn in itertools.product((0, 1), range(math.ceil(self.turns) + 1)):
            reversed_arm = half + (sign < 0)
            angle = (direction + math.pi * reversed_arm) % (2 * math.pi) + 2 * math.pi * turn
            density = (angle if self.angle == "root" else 1.0) * (angle < longest)
            residual = (-1) ** half * distance - (self.a * angle + self.b)
            total += density * np.exp(-0.5 * np.square(residual / width))
        return total


Generator = Blobs | Spirals


def _points(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)


def spiral_forms() -> Iterator[Spirals]:
    """All searched forms of spirals."""
    for turns, noise in itertools.product(TURNS, ("axes", "radius")):
        for angle, (a, b) in itertools.product(("root", "uniform"), RADII):
            yield Spirals(a, b, turns, angle, noise)  # type: ignore[arg-type]
        for end in ENDS:
            yield Spirals(end / (2 * math.pi * turns), 0.0, turns, "uniform", noise)  # type: ignore[arg-type]


WIDTHS = {"blobs": (1.3, 1.7), "spirals": (2.5, 3.5)}
CLASSES = {"blobs": 5, "spirals": 2}
EPOCHS = (300, 600, 1200)
SIZES = (700, 300, 1000)
REACH = {"blobs": ((0.925, 0.968), (0.86, 0.925)), "spirals": ((0.905, 0.968), (0.815, 0.89))}
"""Bayes accuracies from which a network could reach the printed accuracy, at both widths."""
FITTED_SEEDS = 31
COMMON_SEEDS = (*range(11), 42, 100, 101, 123, 1000)
"""Seeds that people type most often; each is reported, whether it fits or not."""
CONFIRMED, SPLITS, MORE_SPLITS = 6, 2, 8
LEVEL = 0.05


def printed(family: str) -> np.ndarray:
    """Standard's four printed cells: accuracy and ECE at the smaller width, then at the larger one."""
    sets = [f"{family}-{width}" for width in WIDTHS[family]]
    return np.array([PAPER[metric]["standard"][name] for name in sets for metric in ("accuracy", "ece")])


def deal(sample: tuple[np.ndarray, np.ndarray], classes: int, seed: int) -> tuple[Task, Samples]:
    """A random split, standardised by its training part: the task, and the test part."""
    inputs, labels = sample
    train, val, test = np.split(np.random.RandomState(seed).permutation(SAMPLES), np.cumsum(SIZES)[:-1])
    scaling = fit_scaling(inputs[train])
    parts = [Samples(scaling.apply(inputs[rows]), torch.as_tensor(labels[rows])) for rows in (train, val, test)]
    return Task(parts[0], parts[1], classes, seed), parts[2]


def standard_cells(family: str, generators: Sequence[Generator], splits: range) -> dict[int, np.ndarray]:
    """Standard's cells by number of epochs: (generator, split, 4)."""
    tasks = [
        deal(generator.draw(width, split), CLASSES[family], split)
        for generator in generators
        for split in splits
        for width in WIDTHS[family]
    ]
    method = Standard(epochs=max(EPOCHS))
    logits = trajectories([(method, task) for task, _ in tasks], [test for _, test in tasks], EPOCHS)
    shape = (len(generators), len(splits), 4)
    return {
        epochs: np.reshape([_cells(logits[k, epochs], test) for k, (_, test) in enumerate(tasks)], shape)
        for epochs in EPOCHS
    }


def _cells(logits: torch.Tensor, test: Samples) -> tuple[float, float]:
    confidence, classes = logits.double().softmax(-1).max(-1)
    correct = (classes == test.labels).numpy()
    return float(correct.mean()), float(metrics.ece(confidence=confidence.numpy(), correct=correct, bins=10))


def spread(cells: np.ndarray) -> np.ndarray:
    """Covariance of the four cells over the splits of one generator, pooled over generators."""
    deviations = cells - cells.mean(1, keepdims=True)
    flat = deviations.reshape(-1, 4)
    pooled: np.ndarray = flat.T @ flat / (len(flat) - len(cells))
    return pooled


def distance(cells: np.ndarray, covariance: np.ndarray, family: str) -> float:
    """Squared Mahalanobis distance of the printed cells from ours."""
    gap = printed(family) - cells
    return float(gap @ np.linalg.solve(covariance, gap))


def judged(family: str, cells: Mapping[int, np.ndarray], covariances: Mapping[int, np.ndarray]) -> dict[str, Any]:
    """The cells of one generator, and how far the printed ones lie, at the number of epochs that fits best."""
    squared = {epochs: distance(values, covariances[epochs], family) for epochs, values in cells.items()}
    best = min(squared, key=lambda epochs: squared[epochs])
    gaps = (printed(family) - cells[best]) / np.sqrt(np.diag(covariances[best]))
    p = float(chi2.sf(squared[best], 4))
    return {
        "epochs": best,
        "cells": cells[best].round(4).tolist(),
        "z": gaps.round(2).tolist(),
        "distance": round(squared[best], 2),
        "p": round(p, 4),
        "fits": p > LEVEL,
    }


def within_reach(family: str, bayes: Sequence[float]) -> bool:
    """Whether a network could reach the printed accuracies."""
    return all(low < value < high for value, (low, high) in zip(bayes, REACH[family], strict=True))


def search_blobs() -> list[dict[str, Any]]:
    """One record for each seed of `make_blobs`."""
    generators = [Blobs(seed) for seed in BLOB_SEEDS]
    bayes = np.array([[g.bayes_accuracy(width) for width in WIDTHS["blobs"]] for g in generators])
    pool = [k for k, own in enumerate(bayes) if within_reach("blobs", own)]
    chosen = sorted(np.random.RandomState(0).choice(pool, FITTED_SEEDS, replace=False))
    trained = standard_cells("blobs", [generators[k] for k in chosen], range(SPLITS))
    predicted, residuals = {}, {}
    design = np.column_stack([np.ones(len(bayes)), bayes])
    for epochs, cells in trained.items():
        rows = np.repeat(design[chosen], SPLITS, axis=0)
        coefficients, *_ = np.linalg.lstsq(rows, cells.reshape(-1, 4), rcond=None)
        gaps = cells.reshape(-1, 4) - rows @ coefficients
        predicted[epochs] = design @ coefficients
        residuals[epochs] = gaps.T @ gaps / (len(gaps) - design.shape[1])
    records = [
        _record("blobs", generator, bayes[k], "predicted", 0)
        | judged("blobs", {epochs: own[k] for epochs, own in predicted.items()}, residuals)
        for k, generator in enumerate(generators)
    ]
    ranked = sorted((r for r in records if r["fits"]), key=lambda r: r["distance"])
    again = [r["seed"] for r in ranked[:CONFIRMED]]
    again += [r["seed"] for r in ranked if r["seed"] in COMMON_SEEDS and r["seed"] not in again]
    return records + confirmed("blobs", [Blobs(seed) for seed in again])


def search_spirals() -> list[dict[str, Any]]:
    """One record for each form of the spirals that is within reach."""
    bayes = {form: [form.bayes_accuracy(width) for width in WIDTHS["spirals"]] for form in spiral_forms()}
    forms = [form for form, accuracies in bayes.items() if within_reach("spirals", accuracies)]
    trained = standard_cells("spirals", forms, range(SPLITS))
    covariances = {epochs: spread(cells) * (1 + 1 / SPLITS) for epochs, cells in trained.items()}
    records = [
        _record("spirals", form, accuracies, "out of reach", 0) | {"fits": False}
        for form, accuracies in bayes.items()
        if form not in forms
    ]
    records += [
        _record("spirals", form, bayes[form], "trained", SPLITS)
        | judged("spirals", {epochs: cells[k].mean(0) for epochs, cells in trained.items()}, covariances)
        for k, form in enumerate(forms)
    ]
    ranked = sorted((r for r in records if r["fits"]), key=lambda r: r["distance"])
    by_name = {form.name: form for form in forms}
    return records + confirmed("spirals", [by_name[r["name"]] for r in ranked[:CONFIRMED]])


def confirmed(family: str, generators: Sequence[Generator]) -> list[dict[str, Any]]:
    """One more record for each of these generators, from more splits, none of which was used before."""
    cells = standard_cells(family, generators, range(SPLITS, SPLITS + MORE_SPLITS))
    covariances = {epochs: spread(values) * (1 + 1 / MORE_SPLITS) for epochs, values in cells.items()}
    return [
        _record(family, g, [g.bayes_accuracy(width) for width in WIDTHS[family]], "confirmed", MORE_SPLITS)
        | judged(family, {epochs: values[k].mean(0) for epochs, values in cells.items()}, covariances)
        for k, g in enumerate(generators)
    ]


def _record(family: str, generator: Generator, bayes: Sequence[float], stage: str, splits: int) -> dict[str, Any]:
    known = {"family": family, "name": generator.name, "stage": stage, "splits": splits, **vars(generator)}
    return known | {"bayes": [round(float(value), 4) for value in bayes]}


def main(arguments: Sequence[str]) -> None:
    """Search, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/bo4sc-data.json"), help="where to write the record")
    options = parser.parse_args(arguments)
    start = time.process_time()
    records = [*search_blobs(), *search_spirals()]
    config = {"experiment": "bo4sc-data", "epochs": EPOCHS, "splits": [SPLITS, MORE_SPLITS], **made()}
    write_results(options.out, config | {"cpu_seconds": round(time.process_time() - start)}, records)


if __name__ == "__main__":
    main(sys.argv[1:])

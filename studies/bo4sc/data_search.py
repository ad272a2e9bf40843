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
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2

from calibrant import metrics
from calibrant.data.scaling import fit_scaling
from calibrant.methods import Samples, Standard, Task, fit_all
from calibrant.report import write_results
from studies.bo4sc.generators import BLOB_SEEDS, SAMPLES, Blobs, Generator, spiral_forms
from studies.bo4sc.search import Trajectory
from studies.bo4sc.table1 import PAPER
from studies.common.shared import made

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
    trajectory = Trajectory(EPOCHS, [test for _, test in tasks])
    method = Standard(epochs=max(EPOCHS))
    fit_all(
        [(method, task) for task, _ in tasks],
        callbacks=lambda description: [trajectory],
        on_group=trajectory.population,
        n_jobs=1,
    )
    cells = {}
    for epochs in EPOCHS:
        found = [_cells(trajectory.logits[k, epochs], test) for k, (_, test) in enumerate(tasks)]
        cells[epochs] = np.reshape(found, (len(generators), len(splits), 4))
    return cells


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
    squared = {epochs: distance(own, covariances[epochs], family) for epochs, own in cells.items()}
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
    forms = [form for form, own in bayes.items() if within_reach("spirals", own)]
    trained = standard_cells("spirals", forms, range(SPLITS))
    covariances = {epochs: spread(cells) * (1 + 1 / SPLITS) for epochs, cells in trained.items()}
    records = [
        _record("spirals", form, own, "out of reach", 0) | {"fits": False}
        for form, own in bayes.items()
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
    covariances = {epochs: spread(own) * (1 + 1 / MORE_SPLITS) for epochs, own in cells.items()}
    return [
        _record(family, g, [g.bayes_accuracy(width) for width in WIDTHS[family]], "confirmed", MORE_SPLITS)
        | judged(family, {epochs: own[k].mean(0) for epochs, own in cells.items()}, covariances)
        for k, g in enumerate(generators)
    ]


def _record(family: str, generator: Generator, bayes: Sequence[float], stage: str, splits: int) -> dict[str, Any]:
    known = {"family": family, "name": generator.name, "stage": stage, "splits": splits, **generator.form}
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

"""Fit time and held-out log-loss of each calibrator, on an over-confident model with 100 classes.

``python -m studies.benchmarks.posthoc_times [rows] [classes]`` prints the table; 5,000 rows and 100 classes by default.
The claim: matrix and Dirichlet scaling, which choose their own regularisation by cross-validation, take at most 10 s.
On a machine that is busy with other work, read the column of CPU seconds.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from calibrant.posthoc import CALIBRATORS, make_calibrator

LIMIT = 10.0
LIMITED = ("matrix", "dirichlet")


def many_classes(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities that are over-confident, by a factor and a shift that differ between classes, and labels."""
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(n_classes, 16)) / 4
    features = 2.2 * places[rng.integers(0, n_classes, n)] + 0.35 * rng.normal(size=(n, 16))
    truth = 6 * features @ places.T
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    logits = truth * rng.uniform(1.2, 2.2, n_classes) + 0.5 * rng.normal(size=n_classes)
    return log_softmax(logits + 0.2 * rng.normal(size=logits.shape), axis=1), labels


def run(n: int = 5000, n_classes: int = 100) -> list[dict[str, Any]]:
    """Return one record per calibrator."""
    scores, labels = many_classes(2 * n, n_classes)
    rows = np.arange(n)
    raw = float(-np.log(softmax(scores[n:], axis=1)[rows, labels[n:]]).mean())
    records: list[dict[str, Any]] = [{"name": "raw", "seconds": 0.0, "cpu": 0.0, "nll": raw}]
    for name in CALIBRATORS:
        begin, cpu = time.perf_counter(), time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator = make_calibrator(name).fit(scores[:n], labels[:n])
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        probs = calibrator.predict_proba(scores[n:])
        loss = float(-np.log(probs[rows, labels[n:]]).mean())
        record = {"name": name, "seconds": seconds, "cpu": cpu, "nll": loss}
        records.append(record | ({"target": LIMIT, "holds": seconds <= LIMIT} if name in LIMITED else {}))
    return records


def table(records: list[dict[str, Any]]) -> str:
    """Return the records as text."""
    lines = [f"{'calibrator':28} {'seconds':>8} {'CPU s':>8} {'NLL':>8}"]
    for record in records:
        verdict = "" if record.get("holds", True) else f"  more than {LIMIT:g} s"
        times = f"{record['seconds']:8.2f} {record['cpu']:8.2f}"
        lines.append(f"{record['name']:28} {times} {record['nll']:8.4f}{verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(run(*(int(value) for value in sys.argv[1:3]))))

"""How much of a calibration error is chance: the scores of simulated networks on 10,000 images, without training.

``python -m studies.meta_reg.sampling_noise --out results/sampling-noise.json`` reads the stored
confidences of ``ce-ts`` in ``results/meta-reg-cifar10.json`` and ``results/meta-reg-cifar100.json``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import bisect

from studies.common.shared import made
from studies.meta_reg.paper import printed
from studies.report import read_results, write_results

IMAGES, BINS, DRAWS, SEEDS = 10_000, 15, 20_000, 5
FINEST = "100"
"""The stored reliability diagram whose bins give the confidences."""
METHOD = "ce-ts"
SOURCE = (
    "J. Lin, L. Tao, M. Dong and C. Xu: Uncertainty Weighted Gradients for Model Calibration, CVPR 2025, "
    "arXiv 2503.22725. ECE of ResNet-50 with 15 bins in per cent, as summaries of the paper quote it"
)
PUBLISHED = {
    "cifar10": {"CE + TS": 1.32, "focal + TS": 1.15, "dual focal + TS": 1.00, "BSCE": 0.88, "BSCE-GRA": 0.74},
    "cifar100": {"CE + TS": 3.05, "focal + TS": 2.57, "dual focal + TS": 2.56, "BSCE": 1.90, "BSCE-GRA": 1.59},
}
"""ECE in per cent by data set and method, from ``SOURCE``. BSCE-GRA powers the gradient by the Brier score."""
COMPARED = (("CE + TS", "dual focal + TS"), ("dual focal + TS", "BSCE-GRA"), ("CE + TS", "BSCE-GRA"))
"""The differences that are judged."""


@dataclass(frozen=True)
class Histogram:
    """The confidences of a network: the number of images and their mean confidence, by narrow bin.

    All images of a bin get its mean confidence. That changes their noise little, because the bins are narrow.
    """

    images: np.ndarray
    confidence: np.ndarray

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Histogram:
        """The confidences of a stored run."""
        diagram = record["diagrams"][FINEST]
        images = np.rint(IMAGES * np.array(diagram["share"])).astype(np.int64)
        taken = images > 0
        return cls(images[taken], np.array(diagram["confidence"], dtype=float)[taken])

    @property
    def mean(self) -> float:
        """The mean confidence, which is the accuracy if the network is calibrated."""
        return float(np.average(self.confidence, weights=self.images))

    def with_mean(self, mean: float) -> Histogram:
        """The same histogram with all confidences raised to one power, so that their mean is ``mean``."""
        power = bisect(lambda own: mean - float(np.average(self.confidence**own, weights=self.images)), 0.0, 20.0)
        return Histogram(self.images, self.confidence**power)

    def probability(self, power: float) -> np.ndarray:
        """The probability of a correct class by bin: 1 is a calibrated network, more an over-confident one."""
        return np.asarray(self.confidence**power)

    def ece(self, correct: np.ndarray, bins: int = BINS) -> np.ndarray:
        """ECE by draw. ``correct`` has the number of correct images by draw and narrow bin."""
        place = np.minimum((self.confidence * bins).astype(int), bins - 1)
        gap = correct - self.images * self.confidence
        gaps = np.stack([np.abs(gap[:, place == own].sum(1)) for own in np.unique(place)])
        return np.asarray(gaps.sum(0) / self.images.sum())


def power_of(histogram: Histogram, ece: float, draws: int) -> float:
    """The ``power`` of over-confident networks with this mean ECE; 1 if calibrated networks have a larger one."""

    def excess(power: float) -> float:
        rng = np.random.default_rng(0)
        correct = rng.binomial(histogram.images, histogram.probability(power), (draws, len(histogram.images)))
        return float(histogram.ece(correct).mean()) - ece

    return 1.0 if excess(1.0) >= 0 else float(bisect(excess, 1.0, 5.0))


def calibrated(histogram: Histogram, draws: int) -> dict[str, Any]:
    """The ECE of calibrated networks in fractions, for one run and for the mean of five.

    Five runs on different images have the spread of ``five``; five runs that agree on all images have that of one run.
    """
    rng = np.random.default_rng(0)
    correct = rng.binomial(histogram.images, histogram.confidence, (draws, len(histogram.images)))
    ece = histogram.ece(correct)
    five = ece[: draws // SEEDS * SEEDS].reshape(-1, SEEDS).mean(1)
    return {"ece": _summary(ece), "ece_of_five": _summary(five)}


def _summary(values: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(values, (0.025, 0.975))
    return {"mean": float(values.mean()), "std": float(values.std()), "low": float(low), "high": float(high)}


def published(histogram: Histogram, eces: Mapping[str, float], draws: int) -> tuple[list[Any], list[Any]]:
    """Networks with the published ECE: their spread over samples, and which differences exceed it.

    A network with a published ECE is right with the probability confidence**power, and the published ECE is its mean
    over samples. The standard deviation of a difference is computed for two networks tested on different images, and
    for two that are right on the same images as far as their accuracies allow. Others on the same images lie between.
    """
    size = (draws, len(histogram.images))
    powers = {name: power_of(histogram, ece / 100, draws // 5) for name, ece in eces.items()}
    rows: dict[str, dict[str, Any]] = {}
    for name, power in powers.items():
        probability = histogram.probability(power)
        values = histogram.ece(np.random.default_rng(1).binomial(histogram.images, probability, size))
        true = histogram.ece((histogram.images * probability)[None])[0]
        rows[name] = {"method": name, "printed": eces[name] / 100, "std": float(values.std()), "true": float(true)}
    differences: list[dict[str, Any]] = []
    for a, b in COMPARED:
        low, high = sorted((powers[a], powers[b]))
        rng = np.random.default_rng(2)
        # A smaller power is a larger probability: the second network is right where the first is, with this share.
        likelier = rng.binomial(histogram.images, histogram.probability(low), size)
        same = histogram.ece(likelier) - histogram.ece(rng.binomial(likelier, histogram.probability(high - low)))
        stds = {
            "std_other_images": math.hypot(rows[a]["std"], rows[b]["std"]),
            "std_same_images": float(same.std()),
        }
        differences.append({"a": a, "b": b, "difference": (eces[a] - eces[b]) / 100, **stds})
    return list(rows.values()), differences


def simulate(results: Path, draws: int) -> list[dict[str, Any]]:
    """One record for each data set."""
    records = []
    for dataset, eces in PUBLISHED.items():
        stored = read_results(results / f"meta-reg-{dataset}.json").records
        record = next(r for r in stored if r["method"] == METHOD and r["seed"] == 0)
        error = printed(dataset, "ce", "error")
        assert error is not None
        histogram = Histogram.of(record).with_mean(1 - error.mean)
        rows, differences = published(histogram, eces, draws)
        records.append(
            {
                "dataset": dataset,
                "mean_confidence": histogram.mean,
                "images": histogram.images.tolist(),
                "confidence": [float(f"{value:.6g}") for value in histogram.confidence],
                "calibrated": calibrated(histogram, draws),
                "seeds": {method: over_seeds(stored, method) for method in (METHOD, "recommended")},
                "published": rows,
                "differences": differences,
            }
        )
    return records


def over_seeds(records: Sequence[Mapping[str, Any]], method: str) -> dict[str, Any]:
    """The ECE of a method's stored runs: networks of several seeds on the same images."""
    values = [r["ece"] for r in records if r["method"] == method and not r["failure"]]
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)), "seeds": len(values)}


def main(arguments: Sequence[str]) -> None:
    """Simulate, and write the result file."""
    parser = argparse.ArgumentParser(description="How much of a calibration error on 10,000 images is chance.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the folder with the stored runs")
    parser.add_argument("--out", type=Path, default=Path("results/sampling-noise.json"))
    parser.add_argument("--draws", type=int, default=DRAWS)
    options = parser.parse_args(arguments)
    config = {"experiment": "sampling-noise", "bins": BINS, "draws": options.draws, "method": METHOD, "source": SOURCE}
    write_results(options.out, {**config, **made()}, simulate(options.results, options.draws))
    print(f"Written: {options.out}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The numbers of one model: scores and calibration errors with intervals and floors, classes, groups and risk.

Paired differences compare two models on the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.stats import norm

from calibrant.metrics import (
    CalibrationTest,
    Estimate,
    accuracy,
    asymptotic_interval,
    brier,
    brier_decomposition,
    calibration_test,
    classwise_ece,
    compare,
    confidence_gap,
    ece,
    mce,
    nll,
    noise_floor,
    smooth_ece,
)
from calibrant.metrics.predictions import read
from calibrant.metrics.scores import brier_terms, nll_terms
from calibrant.report.evaluation.reading import Sample
from calibrant.selective import aurc, excess_aurc, risk_at_coverage

COVERAGES = (0.5, 0.8, 0.9, 0.95)
# Budget of the noise floors in draws of one outcome; large samples use fewer resamples.
BUDGET = 2e7
# Noise floors are shown by their mean. Their interval at this level needs at least this many draws.
_FLOOR_LEVEL = 0.9
_FEWEST_DRAWS = 20
_MOST_GROUPS = 50


@dataclass(frozen=True)
class Measure:
    """One number, its interval if known, and the score of a perfectly calibrated model.

    [`low`, `high`] is the interval. `floor` is the noise floor, and `floor_high` the upper end of its interval. Numbers
    that are not known are None.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    floor_high: float | None = None


@dataclass(frozen=True)
class ModelNumbers:
    """All measurements of one model.

    Attributes
    ----------
    name, n, n_classes : str, int, and int or None
        Name of the model, number of rows and of classes.
    measures : dict of Measure
        Accuracy, NLL, Brier score and calibration errors, by name.
    mean_confidence, gap : float and Estimate
        Mean confidence, and its difference to the accuracy.
    test : CalibrationTest
        Test of the hypothesis that the model is calibrated.
    split : dict
        The parts of the Brier score: miscalibration, discrimination, uncertainty.
    risk : dict
        AURC, excess AURC and points of the risk–coverage curve.
    classes, groups : list of dict
        Number of rows, mean confidence, frequency, gap and ECE of each class and each group.
    groups_left_out : int
        Number of groups that are not in `groups`, because there are many; the largest groups are kept.
    level, bins, weighted : float, int and bool
        Level of the intervals, number of bins, and whether rows are weighted.
    """

    name: str
    n: int
    n_classes: int | None
    measures: dict[str, Measure]
    mean_confidence: float
    gap: Estimate
    test: CalibrationTest
    split: dict[str, float]
    risk: dict[str, Any]
    classes: list[dict[str, Any]] = field(repr=False)
    groups: list[dict[str, Any]] = field(repr=False)
    groups_left_out: int
    level: float
    bins: int
    weighted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def measure_model(
    name: str, sample: Sample, groups: np.ndarray | None, *, level: float, bins: int, resamples: int, seed: int
) -> ModelNumbers:
    """Measure one model."""
    draws: dict[str, Any] = {"n_resamples": _resamples(resamples, len(sample)), "seed": seed, "level": _FLOOR_LEVEL}
    measures = {
        "accuracy": _measure("accuracy", asymptotic_interval(**sample.pairs, metric=accuracy, level=level)),
        "nll": _score("NLL", sample, nll, level),
        "brier": _score("Brier score", sample, brier, level),
        "ece": _binned("ECE", sample, ece, level, bins, draws),
        "smooth_ece": _smooth(sample, resamples, draws),
        "mce": _binned("MCE", sample, mce, level, bins, draws),
    }
    if sample.probs is not None:
        few = draws | {"n_resamples": _resamples(resamples, sample.probs.size)}
        floor = noise_floor(sample.probs, metric=classwise_ece, bins=bins, **few, **sample.weighting)
        value = float(classwise_ece(sample.probs, sample.labels, bins, **sample.weighting))
        measures["classwise_ece"] = Measure("class-wise ECE", value, None, None, floor.mean, floor.high)
    group_rows, left_out = _groups(sample, groups, level, bins, seed)
    return ModelNumbers(
        name,
        len(sample),
        None if sample.probs is None else sample.probs.shape[1],
        measures,
        float(np.average(sample.confidence, weights=sample.weight)),
        asymptotic_interval(**sample.pairs, metric=confidence_gap, level=level),
        calibration_test(**sample.pairs, metric=ece, bins=bins, n_resamples=999, seed=seed),
        _split(sample),
        _risk(sample),
        _classes(sample, level, bins, resamples, seed),
        group_rows,
        left_out,
        level,
        bins,
        sample.weight is not None,
    )


def _resamples(most: int, size: int) -> int:
    return max(_FEWEST_DRAWS, int(min(most, BUDGET / size)))


def _measure(name: str, estimate: Estimate, floor: Any = None) -> Measure:
    noise = (None, None) if floor is None else (floor.mean, floor.high)
    return Measure(name, estimate.value, estimate.low, estimate.high, *noise)


def _score(name: str, sample: Sample, metric: Any, level: float) -> Measure:
    value = float(metric(**sample.keywords))
    if not math.isfinite(value):
        return Measure(name, value)  # an outcome had probability 0, so there is no interval
    return _measure(name, asymptotic_interval(**sample.keywords, metric=metric, level=level))


def _binned(name: str, sample: Sample, metric: Any, level: float, bins: int, draws: dict[str, Any]) -> Measure:
    floor = noise_floor(confidence=sample.confidence, metric=metric, bins=bins, **draws, **sample.weighting)
    return _measure(name, asymptotic_interval(**sample.pairs, metric=metric, level=level, bins=bins), floor)


def _smooth(sample: Sample, resamples: int, draws: dict[str, Any]) -> Measure:
    # One value costs a few transforms of 65,537 nodes for any sample size.
    few = draws | {"n_resamples": min(draws["n_resamples"], max(_FEWEST_DRAWS, resamples // 5))}
    floor = noise_floor(confidence=sample.confidence, metric=smooth_ece, **few, **sample.weighting)
    value = float(smooth_ece(**sample.pairs))
    return Measure("smooth ECE", value, None, None, floor.mean, floor.high)


def _split(sample: Sample) -> dict[str, float]:
    parts = brier_decomposition(**sample.keywords)
    return {
        "brier": parts.score,
        "miscalibration": parts.calibration,
        "discrimination": parts.resolution,
        "uncertainty": parts.uncertainty,
    }


def _risk(sample: Sample) -> dict[str, Any]:
    points = [risk_at_coverage(sample.confidence, sample.correct, coverage) for coverage in COVERAGES]
    return {
        "aurc": aurc(sample.confidence, sample.correct),
        "excess_aurc": excess_aurc(sample.confidence, sample.correct),
        "points": [{"threshold": p.threshold, "coverage": p.coverage, "accuracy": 1 - p.risk} for p in points],
    }


def _classes(sample: Sample, level: float, bins: int, resamples: int, seed: int) -> list[dict[str, Any]]:
    """Each class against the rest: its mean probability and its frequency."""
    if sample.probs is None or sample.labels is None or sample.predicted is None:
        return []
    few = _resamples(resamples, sample.probs.size)
    rows = []
    for k in range(sample.probs.shape[1]):
        column = np.ascontiguousarray(sample.probs[:, k])
        true = sample.labels == k
        part = _part(sample.name_of(k), column, true, sample.weight, sample.probs.shape[1], level, bins, few, seed)
        recall = _share(sample.correct, true, sample.weight)
        precision = _share(sample.correct, sample.predicted == k, sample.weight)
        rows.append(part | {"n": int(true.sum()), "recall": recall, "precision": precision})
    return rows


def _groups(
    sample: Sample, groups: np.ndarray | None, level: float, bins: int, seed: int
) -> tuple[list[dict[str, Any]], int]:
    if groups is None:
        return [], 0
    names, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    largest = np.argsort(-counts, kind="stable")
    rows = []
    for k in largest[:_MOST_GROUPS]:
        rows_of = index == k
        c, hits = sample.confidence[rows_of], sample.correct[rows_of]
        few, weights = _resamples(200, len(c)), None if sample.weight is None else sample.weight[rows_of]
        rows.append(_part(str(names[k]), c, hits, weights, min(len(names), _MOST_GROUPS), level, bins, few, seed))
    return rows, max(0, len(names) - _MOST_GROUPS)


def _share(hits: np.ndarray, among: np.ndarray, weight: np.ndarray | None) -> float | None:
    """The share of hits among some rows; None where there are no such rows."""
    return float(np.average(hits[among], weights=None if weight is None else weight[among])) if among.any() else None


def _part(
    name: str,
    confidence: np.ndarray,
    hits: np.ndarray,
    weight: np.ndarray | None,
    parts: int,
    level: float,
    bins: int,
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Calibration of one class or group.

    The interval of the gap is wide enough to hold for all `parts` together (Bonferroni). Its spread is the larger of
    the observed one and the one that calibration implies, because a rare class without a single case shows no spread.
    """
    weighting: dict[str, Any] = {} if weight is None else {"sample_weight": weight}
    floor = noise_floor(
        confidence=confidence, metric=ece, bins=bins, n_resamples=resamples, seed=seed, level=_FLOOR_LEVEL, **weighting
    )
    gaps, n = confidence - hits, len(hits)
    share = np.full(n, 1 / n) if weight is None else weight / weight.sum()
    gap = float(share @ gaps)
    low = high = None
    if n > 1:
        observed = math.sqrt(float(share**2 @ (gaps - gap) ** 2) * n / (n - 1))
        implied = math.sqrt(float(share**2 @ (confidence * (1 - confidence))))
        half = float(norm.ppf(1 - (1 - level) / (2 * parts))) * max(observed, implied)
        low, high = gap - half, gap + half
    return {
        "name": name,
        "n": n,
        "mean_confidence": float(share @ confidence),
        "frequency": float(share @ hits),
        "gap": gap,
        "gap_low": low,
        "gap_high": high,
        "ece": float(ece(confidence=confidence, correct=hits, bins=bins, **weighting)),
        "floor": floor.mean,
    }


def off(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The classes or groups whose gap is not explained by chance, the largest first."""
    sure = [p for p in parts if p["gap_low"] is not None and (p["gap_low"] > 0 or p["gap_high"] < 0)]
    return sorted(sure, key=lambda p: -abs(p["gap"]))


def paired_differences(
    name: str, sample: Sample, reference: str, reference_sample: Sample, *, level: float, bins: int
) -> dict[str, Any]:
    """Differences `one` − `other` of accuracy, NLL, Brier score and ECE, each with its interval and p-value."""
    a, b = (
        read(keywords.get("probs"), keywords.get("labels"), keywords.get("confidence"), keywords.get("correct"))
        for keywords in (sample.keywords, reference_sample.keywords)
    )
    rows = {
        "accuracy": _paired(sample.correct.astype(float), reference_sample.correct.astype(float), sample.weight, level),
        "nll": _paired(nll_terms(a).numpy(), nll_terms(b).numpy(), sample.weight, level),
        "brier": _paired(brier_terms(a).numpy(), brier_terms(b).numpy(), sample.weight, level),
    }
    pairs = (sample.confidence, reference_sample.confidence), (sample.correct, reference_sample.correct)
    result = compare(confidence=pairs[0], correct=pairs[1], metric=ece, level=level, bins=bins, **sample.weighting)
    rows["ece"] = {"value": result.difference, "low": result.low, "high": result.high, "p_value": result.p_value}
    return {"model": name, "minus": reference, **rows}


def _paired(a: np.ndarray, b: np.ndarray, weight: np.ndarray | None, level: float) -> dict[str, float | None]:
    """Mean difference of two paired columns with its normal interval and two-sided p-value."""
    with np.errstate(invalid="ignore"):
        gaps = a - b
        share = np.full(len(gaps), 1 / len(gaps)) if weight is None else weight / weight.sum()
        value = float(share @ gaps)
    if not math.isfinite(value):
        return {"value": None, "low": None, "high": None, "p_value": None}
    error = math.sqrt(float(share**2 @ (gaps - value) ** 2) * len(gaps) / (len(gaps) - 1))
    half = float(norm.ppf((1 + level) / 2)) * error
    p_value = float(2 * norm.sf(abs(value) / error)) if error > 0 else 1.0 if value == 0 else 0.0
    return {"value": value, "low": value - half, "high": value + half, "p_value": p_value}

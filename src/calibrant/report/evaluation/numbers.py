"""The numbers of one model: scores and calibration errors with intervals and floors, classes, groups and risk.

Paired differences compare two models on the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

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


class Settings(NamedTuple):
    """Level of intervals, number of bins, largest number of draws for noise floors, and their seed."""

    level: float = 0.95
    bins: int = 15
    most_draws: int = 200
    seed: int = 0

    def draws(self, size: int, most: int | None = None) -> dict[str, Any]:
        """The keywords of a noise floor of this many outcomes, with at most so many draws."""
        count = min(self.most_draws if most is None else most, BUDGET / size)
        return {"n_resamples": max(_FEWEST_DRAWS, int(count)), "seed": self.seed, "level": _FLOOR_LEVEL}


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


def measure_model(name: str, sample: Sample, groups: np.ndarray | None, settings: Settings) -> ModelNumbers:
    """Measure one model."""
    level, bins, _, seed = settings
    measures = {
        "accuracy": _measure("accuracy", asymptotic_interval(**sample.pairs, metric=accuracy, level=level)),
        "nll": _score("NLL", sample, nll, level),
        "brier": _score("Brier score", sample, brier, level),
        "ece": _binned("ECE", sample, ece, settings),
        "smooth_ece": _smooth(sample, settings),
        "mce": _binned("MCE", sample, mce, settings),
    }
    if sample.probs is not None:
        draws = settings.draws(sample.probs.size)
        floor = noise_floor(sample.probs, metric=classwise_ece, bins=bins, **draws, **sample.weighting)
        value = float(classwise_ece(sample.probs, sample.labels, bins, **sample.weighting))
        measures["classwise_ece"] = Measure("class-wise ECE", value, None, None, floor.mean, floor.high)
    group_parts, left_out = _groups(sample, groups, settings)
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
        _classes(sample, settings),
        group_parts,
        left_out,
        level,
        bins,
        sample.weight is not None,
    )


def _measure(name: str, estimate: Estimate, floor: Any = None) -> Measure:
    noise = (None, None) if floor is None else (floor.mean, floor.high)
    return Measure(name, estimate.value, estimate.low, estimate.high, *noise)


def _score(name: str, sample: Sample, metric: Any, level: float) -> Measure:
    value = float(metric(**sample.keywords))
    if not math.isfinite(value):
        return Measure(name, value)  # an outcome had probability 0, so there is no interval
    return _measure(name, asymptotic_interval(**sample.keywords, metric=metric, level=level))


def _binned(name: str, sample: Sample, metric: Any, settings: Settings) -> Measure:
    bins, draws = settings.bins, settings.draws(len(sample))
    floor = noise_floor(confidence=sample.confidence, metric=metric, bins=bins, **draws, **sample.weighting)
    return _measure(name, asymptotic_interval(**sample.pairs, metric=metric, level=settings.level, bins=bins), floor)


def _smooth(sample: Sample, settings: Settings) -> Measure:
    # One value costs a few transforms of 65,537 nodes for any sample size, so there are fewer draws.
    draws = settings.draws(len(sample), settings.most_draws // 5)
    floor = noise_floor(confidence=sample.confidence, metric=smooth_ece, **draws, **sample.weighting)
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


def _classes(sample: Sample, settings: Settings) -> list[dict[str, Any]]:
    """Each class against the rest: its mean probability and its frequency."""
    if sample.probs is None or sample.labels is None or sample.predicted is None:
        return []
    entries = []
    for k in range(sample.probs.shape[1]):
        true = sample.labels == k
        against_rest = Sample(np.ascontiguousarray(sample.probs[:, k]), true, weight=sample.weight)
        part = _part(sample.name_of(k), against_rest, sample.probs.shape[1], settings, sample.probs.size)
        recall = _share(sample.correct, true, sample.weight)
        precision = _share(sample.correct, sample.predicted == k, sample.weight)
        entries.append(part | {"n": int(true.sum()), "recall": recall, "precision": precision})
    return entries


def _groups(sample: Sample, groups: np.ndarray | None, settings: Settings) -> tuple[list[dict[str, Any]], int]:
    if groups is None:
        return [], 0
    names, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    entries = []
    for k in np.argsort(-counts, kind="stable")[:_MOST_GROUPS]:
        inside = index == k
        weight = None if sample.weight is None else sample.weight[inside]
        group = Sample(sample.confidence[inside], sample.correct[inside], weight=weight)
        parts = min(len(names), _MOST_GROUPS)
        entries.append(_part(str(names[k]), group, parts, settings._replace(most_draws=200), len(group)))
    return entries, max(0, len(names) - _MOST_GROUPS)


def _share(hits: np.ndarray, among: np.ndarray, weight: np.ndarray | None) -> float | None:
    """The share of hits among some rows; None where there are no such rows."""
    return float(np.average(hits[among], weights=None if weight is None else weight[among])) if among.any() else None


def _part(name: str, sample: Sample, parts: int, settings: Settings, size: int) -> dict[str, Any]:
    """Calibration of one class or group.

    The interval of the gap is wide enough to hold for all `parts` together (Bonferroni). Its spread is the larger of
    the observed one and the one that calibration implies, because a rare class without a single case shows no spread.
    """
    confidence, bins = sample.confidence, settings.bins
    floor = noise_floor(confidence=confidence, metric=ece, bins=bins, **settings.draws(size), **sample.weighting)
    share = _shares(len(sample), sample.weight)
    gap, observed = _mean_and_error(confidence - sample.correct, share)
    low = high = None
    if len(sample) > 1:
        implied = math.sqrt(float(share**2 @ (confidence * (1 - confidence))))
        half = float(norm.ppf(1 - (1 - settings.level) / (2 * parts))) * max(observed, implied)
        low, high = gap - half, gap + half
    return {
        "name": name,
        "n": len(sample),
        "mean_confidence": float(share @ confidence),
        "frequency": float(share @ sample.correct),
        "gap": gap,
        "gap_low": low,
        "gap_high": high,
        "ece": float(ece(**sample.pairs, bins=bins)),
        "floor": floor.mean,
    }


def _shares(n: int, weight: np.ndarray | None) -> np.ndarray:
    return np.full(n, 1 / n) if weight is None else np.asarray(weight / weight.sum())


def _mean_and_error(values: np.ndarray, share: np.ndarray) -> tuple[float, float]:
    """Weighted mean and its standard error; the error of a single value is 0."""
    mean = float(share @ values)
    return mean, math.sqrt(float(share**2 @ (values - mean) ** 2) * len(values) / max(1, len(values) - 1))


def off(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The classes or groups whose gap is not explained by chance, the largest first."""
    sure = [p for p in parts if p["gap_low"] is not None and (p["gap_low"] > 0 or p["gap_high"] < 0)]
    return sorted(sure, key=lambda p: -abs(p["gap"]))


def paired_differences(
    name: str, sample: Sample, reference: str, reference_sample: Sample, settings: Settings
) -> dict[str, Any]:
    """Differences `one` − `other` of accuracy, NLL, Brier score and ECE, each with its interval and p-value."""
    a, b = (
        read(keywords.get("probs"), keywords.get("labels"), keywords.get("confidence"), keywords.get("correct"))
        for keywords in (sample.keywords, reference_sample.keywords)
    )
    terms = {
        "accuracy": (sample.correct.astype(float), reference_sample.correct.astype(float)),
        "nll": (nll_terms(a).numpy(), nll_terms(b).numpy()),
        "brier": (brier_terms(a).numpy(), brier_terms(b).numpy()),
    }
    entries = {key: _paired(*pair, sample.weight, settings.level) for key, pair in terms.items()}
    pairs = (sample.confidence, reference_sample.confidence), (sample.correct, reference_sample.correct)
    options: dict[str, Any] = {"level": settings.level, "bins": settings.bins, **sample.weighting}
    result = compare(confidence=pairs[0], correct=pairs[1], metric=ece, **options)
    entries["ece"] = {"value": result.difference, "low": result.low, "high": result.high, "p_value": result.p_value}
    return {"model": name, "minus": reference, **entries}


def _paired(a: np.ndarray, b: np.ndarray, weight: np.ndarray | None, level: float) -> dict[str, float | None]:
    """Mean difference of two paired columns with its normal interval and two-sided p-value."""
    with np.errstate(invalid="ignore"):
        value, error = _mean_and_error(a - b, _shares(len(a), weight))
    if not math.isfinite(value):
        return {"value": None, "low": None, "high": None, "p_value": None}
    half = float(norm.ppf((1 + level) / 2)) * error
    p_value = float(2 * norm.sf(abs(value) / error)) if error > 0 else 1.0 if value == 0 else 0.0
    return {"value": value, "low": value - half, "high": value + half, "p_value": p_value}

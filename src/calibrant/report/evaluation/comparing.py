"""Paired differences between models on the same rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import norm

from calibrant.metrics import compare, ece
from calibrant.metrics.predictions import Predictions, read
from calibrant.metrics.scores import brier_terms, nll_terms
from calibrant.report.evaluation.reading import Sample


def paired_differences(
    name: str, one: Sample, reference: str, other: Sample, *, level: float, bins: int
) -> dict[str, Any]:
    """Differences `one` − `other` of accuracy, NLL, Brier score and ECE, each with its interval and p-value."""
    a, b = _read(one), _read(other)
    rows = {
        "accuracy": _paired(one.correct.astype(float), other.correct.astype(float), one.weight, level),
        "nll": _paired(nll_terms(a).numpy(), nll_terms(b).numpy(), one.weight, level),
        "brier": _paired(brier_terms(a).numpy(), brier_terms(b).numpy(), one.weight, level),
    }
    pairs = (one.confidence, other.confidence), (one.correct, other.correct)
    result = compare(confidence=pairs[0], correct=pairs[1], metric=ece, level=level, bins=bins, **one.weighting)
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


def _read(sample: Sample) -> Predictions:
    given = sample.given
    return read(given.get("probs"), given.get("labels"), given.get("confidence"), given.get("correct"))

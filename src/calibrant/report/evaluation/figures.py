"""The data of the page's figures: reliability in three forms, a histogram, risk and coverage, and the reject option.

Everything is aggregated here, so that the page stays small for any number of predictions. The limits that a reader can
choose are values of the sample, and their counts are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.metrics.predictions import Predictions, read
from calibrant.metrics.scores import isotonic_fit
from calibrant.plots import prepare_reliability, prepare_smooth_reliability
from calibrant.report.evaluation.numbers import ModelNumbers
from calibrant.report.evaluation.reading import Sample
from calibrant.selective import Window, uniform_risk_bound

MOST_LIMITS = 1200
ABOVE_ALL = float(np.nextafter(1.0, 2.0))
"""A limit that no prediction reaches."""
_HISTOGRAM = 40
_CURVE_POINTS = 201
_CORP_DRAWS = 60


def figures(sample: Sample, numbers: ModelNumbers, window: Window | None = None) -> dict[str, Any]:
    """All figures of one model as plain values; the reject option starts at ``window`` if there is one."""
    pairs, positive = {"confidence": sample.pairs}, None
    if is_binary(sample) and sample.probs is not None and sample.labels is not None:
        pairs["positive"] = {"confidence": sample.probs[:, 1], "correct": sample.labels == 1, **sample.weighting}
        positive = sample.name_of(1)
    return {
        "name": numbers.name,
        "positive": positive,
        "curves": {kind: reliability(predictions, numbers) for kind, predictions in pairs.items()},
        "reject": reject(sample, numbers.level, window),
    }


def is_binary(sample: Sample) -> bool:
    """Whether the predictions are probabilities of two classes."""
    return sample.probs is not None and sample.probs.shape[1] == 2


def reliability(pairs: dict[str, Any], numbers: ModelNumbers) -> dict[str, Any]:
    """The three curves of pairs of confidence and correctness, or of a class's probability and its occurrence."""
    return {"binned": _binned(pairs, numbers), "smooth": _smooth(pairs, numbers), "corp": _corp(pairs, numbers)}


def _binned(pairs: dict[str, Any], numbers: ModelNumbers) -> list[dict[str, Any]]:
    r = prepare_reliability(**pairs, bins=numbers.bins, level=numbers.level, n_resamples=0)
    rows = zip(r.lower, r.upper, r.share, r.confidence, r.accuracy, r.band_low, r.band_high, strict=True)
    keys = ("lower", "upper", "share", "confidence", "accuracy", "low", "high")
    return [dict(zip(keys, _rounded(row), strict=True)) for row in rows if row[2] > 0]


def _smooth(pairs: dict[str, Any], numbers: ModelNumbers) -> list[list[float]]:
    """Rows of confidence, accuracy, and the consistency band around the diagonal."""
    s = prepare_smooth_reliability(**pairs, level=numbers.level)
    supported = (s.local_count >= 4) & (s.confidence >= s.support[0]) & (s.confidence <= s.support[1])
    at = np.flatnonzero(supported & np.isfinite(s.accuracy) & np.isfinite(s.spread))
    at = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), _CURVE_POINTS)).round().astype(int))] if len(at) else at
    t = s.confidence[at]
    low, high = np.clip(t - s.spread[at], 0, 1), np.clip(t + s.spread[at], 0, 1)
    return [_rounded(row) for row in zip(t, np.clip(s.accuracy[at], 0, 1), low, high, strict=True)]


def _corp(pairs: dict[str, Any], numbers: ModelNumbers) -> list[list[float]]:
    """The isotonic fit at quantiles of the confidence, and its band for a calibrated model."""
    p, confidence = read(None, None, **pairs), pairs["confidence"]
    order = np.argsort(confidence, kind="stable")
    at = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), _CURVE_POINTS)).round().astype(int))]
    fit = isotonic_fit(p).numpy()[at]
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(_CORP_DRAWS):
        hits = rng.random(len(confidence)) < confidence
        draws.append(isotonic_fit(Predictions(p.confidence, p.correct.new_tensor(hits), p.weight)).numpy()[at])
    tail = (1 - numbers.level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return [_rounded(row) for row in zip(confidence[at], fit, low, high, strict=True)]


def reject(sample: Sample, level: float, window: Window | None = None) -> dict[str, Any]:
    """Counts and bounds for every limit that a reader can choose.

    The score is the confidence, or, with two classes, the probability of the second. Predictions between two limits are
    withheld. For limits low < high, with the columns below, ::

        kept   = above[high] + below[low]      (right and wrong each)
        bound  = (U_above[high] + U_below[low]) / (the same + L_above[high] + L_below[low])

    This is `UniformRiskBound.risk`, which holds for all windows at once.
    """
    binary = is_binary(sample)
    score = sample.probs[:, 1] if binary and sample.probs is not None else sample.confidence
    values = np.unique(score)
    if len(values) > MOST_LIMITS:
        # Half of the limits are even over the sample, half over the range: dense near predictions, without gaps.
        ranks = np.sort(score)[np.linspace(0, len(score) - 1, MOST_LIMITS // 2).round().astype(int)]
        even = np.searchsorted(values, np.linspace(values[0], values[-1], MOST_LIMITS // 2)).clip(max=len(values) - 1)
        # With two classes nothing is withheld between the two values around one half.
        middle = np.searchsorted(values, 0.5, side="right")
        around = values[max(0, middle - 1) : middle + 1]
        values = np.unique(np.concatenate([ranks, values[even], around]))
    low, high = _start(sample, window, binary)
    values = np.unique(np.concatenate([values, [v for v in (low, high) if v is not None]]))
    bound = uniform_risk_bound(score, sample.correct, level=level, two_sided=True)
    right, wrong = np.sort(score[sample.correct]), np.sort(score[~sample.correct])
    errors_above, errors_below, right_above, right_below = bound.sides(values)
    counts, _ = np.histogram(score, bins=_HISTOGRAM, range=(0, 1))
    bad, _ = np.histogram(score[~sample.correct], bins=_HISTOGRAM, range=(0, 1))
    return {
        "n": len(score),
        "wrong": len(wrong),
        "level": level,
        "binary": binary,
        "score": f"probability of {sample.name_of(1)}" if binary else "confidence",
        "limits": values.tolist(),
        "start": None if high is None else [_place(values, low), _place(values, high)],
        "rightAbove": (len(right) - np.searchsorted(right, values)).tolist(),
        "wrongAbove": (len(wrong) - np.searchsorted(wrong, values)).tolist(),
        "rightBelow": np.searchsorted(right, values, side="right").tolist(),
        "wrongBelow": np.searchsorted(wrong, values, side="right").tolist(),
        "errorsAbove": _rounded(errors_above, 8),
        "errorsBelow": _rounded(errors_below, 8),
        "correctAbove": _rounded(right_above, 8),
        "correctBelow": _rounded(right_below, 8),
        "histogram": counts.tolist(),
        "histogramWrong": bad.tolist(),
    }


def _start(sample: Sample, window: Window | None, binary: bool) -> tuple[float | None, float | None]:
    """The limits of the score at which a window of confidence begins and ends; None where there is no limit."""
    if window is None or window.high <= (0.5 if binary else max(0.0, window.low)):  # nothing is withheld
        return None, None
    high = min(window.high, ABOVE_ALL)
    low = window.low if window.low > -np.inf else None
    if not binary or sample.probs is None:
        return low, high
    if low is not None:
        raise ValueError(
            f"rule must withhold all predictions below a confidence; got {window}. Give such a rule, or none."
        )
    first = sample.probs[sample.probs[:, 0] >= high, 1]
    return float(first.max()) if len(first) else None, high


def _place(values: np.ndarray, limit: float | None) -> int:
    return -1 if limit is None else int(np.searchsorted(values, limit))


def _rounded(values: Any, digits: int = 5) -> list[float]:
    return [round(float(v), digits) for v in values]

"""What sampling noise alone scores: the noise floor of a metric and the test of "this model is calibrated"..

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.metrics._predictions import Binary, Predictions, read
from calibrant.metrics._resampling import (
    Metric,
    call,
    check_level,
    draw_outcomes,
    new_generator,
    quantiles,
    reduce_to_pairs,
    tail_p_value,
)
from calibrant.metrics.binned import ece


@dataclass(frozen=True)
class NoiseFloor:
    """What a perfectly calibrated model with these predictions scores: mean and central interval."""

    mean: float
    low: float
    high: float
    level: float
    n_resamples: int
    seed: int

    def __repr__(self) -> str:
        return (
            f"NoiseFloor({self.mean:.4g}, {100 * self.level:g} % of calibrated models in "
            f"[{self.low:.4g}, {self.high:.4g}]; {self.n_resamples} resamples, seed {self.seed})"
        )


@dataclass(frozen=True)
class CalibrationTest:
    """Test of the hypothesis that the model is calibrated: a small p-value speaks against it."""

    statistic: float
    p_value: float
    null_mean: float
    n_resamples: int
    seed: int

    def __repr__(self) -> str:
        return (
            f"CalibrationTest(p = {self.p_value:.4g}; statistic {self.statistic:.4g}, {self.null_mean:.4g} on "
            f"average if calibrated; {self.n_resamples} resamples, seed {self.seed})"
        )


def noise_floor(
    probs: Any = None,
    *,
    metric: Metric = ece,
    level: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
    confidence: Any = None,
    from_logits: bool = False,
    binary: Binary | None = None,
    sample_weight: Any = None,
    **metric_arguments: Any,
) -> NoiseFloor:
    """Score of a perfectly calibrated model that makes exactly these predictions on a sample of this size.

    Outcomes are drawn from the predictions themselves, `n_resamples` times, and the metric is evaluated on
    each draw. A calibration error near the floor cannot be told from 0; the floor is a level, not the noise
    of a difference between models (see `compare`).

    Parameters
    ----------
    probs : (n, C) probabilities; or `confidence=` for (confidence, correct) metrics. No labels are used.
    metric : any metric of this package, or a function called as `metric(probs, labels)` or, if `confidence`
        is given, as `metric(confidence=..., correct=...)`, that returns a number.
    level : share of the draws inside [low, high].
    seed : of the draws; the same seed gives the same result.
    **metric_arguments : passed on to the metric, for instance `bins=10`.

    Other arguments as in `ece`.
    """
    check_level(level, n_resamples)
    p = _without_outcomes(probs, confidence, from_logits, binary, sample_weight)
    values = null_values(p, metric, metric_arguments, n_resamples, seed)
    low, high = quantiles(values, level)
    return NoiseFloor(values.mean().item(), low, high, level, n_resamples, seed)


def _without_outcomes(probs: Any, confidence: Any, from_logits: bool, binary: Binary | None, weight: Any) ->
Predictions:
    if (probs is None) == (confidence is None):
        raise ValueError("give either probs or confidence=, and no labels: the outcomes are drawn.")
    given = probs if confidence is None else confidence
    values = getattr(given, "values", given) if not isinstance(given, Tensor) else given
    nothing = torch.zeros(len(values), dtype=torch.int64)
    if confidence is None:
        return read(probs, nothing, from_logits=from_logits, binary=binary, sample_weight=weight)
    return read(
        None, None, confidence, nothing, from_logits=from_logits, binary=binary, sample_weight=weight
    )


def null_values(
    p: Predictions, metric: Metric, arguments: dict[str, Any], n_resamples: int, seed: int
) -> Tensor:
    """Values of the metric on outcomes drawn from the predictions."""
    p = reduce_to_pairs(p, metric)
    generator = new_generator(seed, p.confidence.device)
    draws = (call(metric, draw_outcomes(p, generator), arguments) for _ in range(n_resamples))
    return torch.tensor(list(draws), dtype=torch.float64)


def calibration_test(
    probs: Any = None,
    labels: Any = None,
    *,
    metric: Metric = ece,
    n_resamples: int = 999,
    seed: int = 0,
    confidence: Any = None,
    correct: Any = None,
    from_logits: bool = False,
    binary: Binary | None = None,
    sample_weight: Any = None,
    **metric_arguments: Any,
) -> CalibrationTest:
    """Test the hypothesis that the model is calibrated, P(correct | confidence) = confidence.

    The metric's value is compared with its values on outcomes drawn from the predictions. Given the
    predictions, that is its exact distribution under the hypothesis, so p = (1 + #{draws ≥ value}) / (1 +
    n_resamples) is valid for every sample size: P(p ≤ α) ≤ α. The metric decides which departures are seen;
    with a metric of the whole matrix, such as `classwise_ece`, the hypothesis is that labels follow
    `probs`.

    Arguments as in `noise_floor`, and outcomes as in `ece`. Samples must be independent.
    """
    if n_resamples < 1:
        raise ValueError(f"n_resamples must be at least 1, got {n_resamples}.")
    p = read(
        probs,
        labels,
        confidence,
        correct,
        from_logits=from_logits,
        binary=binary,
        sample_weight=sample_weight,
    )
    p = reduce_to_pairs(p, metric)
    statistic = call(metric, p, metric_arguments)
    draws = null_values(p, metric, metric_arguments, n_resamples, seed)
    return CalibrationTest(
        statistic, tail_p_value(draws, statistic), draws.mean().item(), n_resamples, seed
    )

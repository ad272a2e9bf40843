"""The noise floor of a metric, and the test of the hypothesis that a model is calibrated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.base.inputs import Logits
from calibrant.metrics._resampling import (
    Metric,
    call,
    check_level,
    draw_outcomes,
    new_generator,
    quantiles,
    read_for,
    tail_p_value,
    unwrapped,
)
from calibrant.metrics.binned import ece, ece_of_draws
from calibrant.metrics.classwise import classwise_ece, classwise_of_draws
from calibrant.metrics.predictions import Binary, Predictions


@dataclass(frozen=True)
class NoiseFloor:
    """The score of a perfectly calibrated model with these predictions.

    `mean` is the mean over `n_resamples` draws, and [`low`, `high`] holds the central share `level` of them. `seed` is
    the seed of the draws.
    """

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
    """Test of the hypothesis that the model is calibrated; a small `p_value` is evidence against it.

    `statistic` is the value of the metric, and `null_mean` its mean over `n_resamples` draws of a calibrated model.
    """

    statistic: float
    p_value: float
    null_mean: float
    n_resamples: int
    seed: int

    def __repr__(self) -> str:
        return (
            f"CalibrationTest(p = {self.p_value:.4g}; statistic {self.statistic:.4g}, {self.null_mean:.4g} "
            f"on average if calibrated; {self.n_resamples} resamples, seed {self.seed})"
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
    """Compute the score of a perfectly calibrated model that makes exactly these predictions, on this many rows.

    Outcomes are drawn from the predictions themselves, `n_resamples` times, and the metric is evaluated on each draw. A
    calibration error near the floor cannot be distinguished from 0. The floor does not say whether two models differ;
    see `compare`.

    Parameters
    ----------
    probs : array or tensor of shape (n, C)
        Class probabilities. No labels are used.
    metric : callable
        Any metric of this package, or a function called as `metric(probs, labels)` or, if `confidence` is given, as
        `metric(confidence=..., correct=...)`, that returns a number.
    level : float
        Share of the draws inside [low, high].
    n_resamples : int
        Number of draws.
    seed : int
        Seed of the draws; the same seed gives the same result.
    confidence : array or tensor of shape (n,)
        Predictions in another form, instead of probs: the probability of the predicted class.
    from_logits, binary, sample_weight
        As in `ece`.
    **metric_arguments
        Passed on to the metric, for instance `bins=10`.

    Returns
    -------
    NoiseFloor
        The mean over the draws, and the interval that holds the share `level` of them.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.metrics import noise_floor
    >>> floor = noise_floor(np.full((100, 2), [0.7, 0.3]))
    >>> 0 < floor.low < floor.mean < floor.high
    True
    """
    check_level(level, n_resamples)
    p = _without_outcomes(
        metric, probs, confidence, from_logits=from_logits, binary=binary, sample_weight=sample_weight
    )
    values = null_values(p, metric, metric_arguments, n_resamples, seed)
    low, high = quantiles(values, level)
    return NoiseFloor(values.mean().item(), low, high, level, n_resamples, seed)


def _without_outcomes(metric: Metric, probs: Any, confidence: Any, **keywords: Any) -> Predictions:
    if (probs is None) == (confidence is None):
        raise ValueError("Give either probs or confidence=, without labels: the outcomes are drawn.")
    if confidence is None:
        return read_for(metric, probs, np.zeros(_length(probs), dtype=np.int64), **keywords)
    return read_for(metric, None, None, confidence, np.zeros(_length(confidence), dtype=bool), **keywords)


def _length(values: Any) -> int:
    shape = np.shape(values.values if isinstance(values, Logits) else values)
    return int(shape[0]) if shape else 0  # a single number fails the checks


def null_values(p: Predictions, metric: Metric, arguments: dict[str, Any], n_resamples: int, seed: int) -> Tensor:
    """Values of the metric on outcomes drawn from the predictions."""
    generator = new_generator(seed, p.confidence.device)
    draws = (draw_outcomes(p, generator) for _ in range(n_resamples))
    function, keywords = unwrapped(metric, arguments)
    if function is ece and keywords.keys() <= {"bins", "scheme", "norm", "debias"}:
        return ece_of_draws(p, (outcomes.correct for outcomes in draws), **keywords)
    if function is classwise_ece and p.probs is not None and keywords.keys() <= {"bins", "norm", "debias"}:
        return classwise_of_draws(p, (outcomes.labels for outcomes in draws if outcomes.labels is not None), **keywords)
    return torch.tensor([call(metric, outcomes, arguments) for outcomes in draws], dtype=torch.float64, device="cpu")


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

    The value of the metric is compared with its values on outcomes drawn from the predictions. Given the predictions,
    this is its exact distribution under the hypothesis, so p = (1 + #{draws ≥ value}) / (1 + n_resamples) is valid for
    every sample size: P(p ≤ α) ≤ α. The metric decides which departures are found. With a metric of the whole matrix,
    such as `classwise_ece`, the hypothesis is that labels follow `probs`.

    Arguments are as in `noise_floor`, and outcomes as in `ece`. Samples must be independent.
    """
    if n_resamples < 1:
        raise ValueError(f"n_resamples must be at least 1; got {n_resamples}.")
    keywords: dict[str, Any] = {"from_logits": from_logits, "binary": binary, "sample_weight": sample_weight}
    p = read_for(metric, probs, labels, confidence, correct, **keywords)
    statistic = call(metric, p, metric_arguments)
    draws = null_values(p, metric, metric_arguments, n_resamples, seed)
    return CalibrationTest(statistic, tail_p_value(draws, statistic), draws.mean().item(), n_resamples, seed)

"""Paired comparison of two models on the same sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.metrics._predictions import Binary, Predictions
from calibrant.metrics._resampling import (
    Metric,
    call,
    check_level,
    draw_rows,
    new_generator,
    quantiles,
    read_for,
    tail_p_value,
)
from calibrant.metrics.binned import ece


@dataclass(frozen=True)
class Comparison:
    """The metric of two models on one sample, and their difference a − b with interval and p-value."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    level: float
    method: str

    def __repr__(self) -> str:
        return (
            f"Comparison(a {self.a:.4g}, b {self.b:.4g}, a − b {self.difference:.4g}, "
            f"{100 * self.level:g} % interval [{self.low:.4g}, {self.high:.4g}], "
            f"p = {self.p_value:.4g}; {self.method})"
        )


def compare(
    probs_a: Any = None,
    probs_b: Any = None,
    labels: Any = None,
    *,
    metric: Metric = ece,
    level: float = 0.95,
    test: Literal["bootstrap", "swap"] = "bootstrap",
    n_resamples: int = 1000,
    seed: int = 0,
    confidence: tuple[Any, Any] | None = None,
    correct: tuple[Any, Any] | None = None,
    from_logits: bool = False,
    binary: Binary | None = None,
    sample_weight: Any = None,
    **metric_arguments: Any,
) -> Comparison:
    """Compare two models on the same samples: the difference of a metric, its interval and p-value.

    The interval is the basic bootstrap of the paired difference: both models see the same draws, so what
    the sample does to both cancels. It suits metrics that are smooth around the truth; plug-in calibration
    errors also differ by their noise floors, which the reflection removes only in part: with `debias=True`
    ECE is safer.

    Parameters
    ----------
    probs_a, probs_b, labels : two (n, C) matrices and one label per row; or `confidence=(a, b), correct=(a,
        b)`.
    test : "bootstrap" for the p-value that belongs to the interval (it is below 1 − level where the
        interval excludes 0); "swap" for an exact test of the stronger hypothesis that the models are
        exchangeable: each row's two predictions are swapped at random.
    metric, seed, **metric_arguments : as in `noise_floor`.

    Other arguments as in `ece`.
    """
    check_level(level, n_resamples)
    if test not in ("bootstrap", "swap"):
        raise ValueError(f"test must be 'bootstrap' or 'swap', got {test!r}.")
    a, b = _read_both(
        metric,
        (probs_a, probs_b),
        labels,
        confidence,
        correct,
        from_logits=from_logits,
        binary=binary,
        sample_weight=sample_weight,
    )
    generator = new_generator(seed, a.confidence.device)
    value_a, value_b = call(metric, a, metric_arguments), call(metric, b, metric_arguments)
    difference = value_a - value_b
    draws = torch.empty(n_resamples, dtype=torch.float64)
    for i in range(n_resamples):
        rows = draw_rows(len(a), generator)
        draws[i] = call(metric, a.take(rows), metric_arguments) - call(metric, b.take(rows), metric_arguments)
    low, high = quantiles(draws, level)
    if test == "bootstrap":
        upper, lower = tail_p_value(draws, 2 * difference), tail_p_value(-draws, -2 * difference)
        p_value = min(1.0, 2 * min(upper, lower))
    else:
        p_value = _swap_test(a, b, metric, metric_arguments, n_resamples, generator, abs(difference))
    return Comparison(
        value_a,
        value_b,
        difference,
        2 * difference - high,
        2 * difference - low,
        p_value,
        level,
        f"paired bootstrap, p by {test}, {n_resamples} resamples, seed {seed}",
    )


def _read_both(
    metric: Metric, probs: tuple[Any, Any], labels: Any, confidence: Any, correct: Any, **given: Any
) -> tuple[Predictions, Predictions]:
    for name, pair in (("confidence", confidence), ("correct", correct)):
        if pair is not None and not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise ValueError(f"{name} must be a pair (of model a, of model b), got {type(pair).__name__}.")
    pairs = zip(probs, confidence or (None, None), correct or (None, None), strict=True)
    a, b = (read_for(metric, p, labels, c, hit, **given) for p, c, hit in pairs)
    if len(a) != len(b):
        raise ValueError(f"both models must predict the same samples, got {len(a)} and {len(b)} predictions.")
    if a.probs is not None and b.probs is not None and a.probs.shape != b.probs.shape:
        raise ValueError(
            f"both models must have the same classes, got {a.probs.shape[1]} and {b.probs.shape[1]} columns."
        )
    return a, b


def _swap_test(
    a: Predictions,
    b: Predictions,
    metric: Metric,
    arguments: dict[str, Any],
    n_resamples: int,
    generator: torch.Generator,
    observed: float,
) -> float:
    sizes = torch.empty(n_resamples, dtype=torch.float64)
    for i in range(n_resamples):
        swap = torch.rand(len(a), generator=generator, device=generator.device) < 0.5
        first, second = _mix(swap, b, a), _mix(swap, a, b)
        sizes[i] = abs(call(metric, first, arguments) - call(metric, second, arguments))
    return tail_p_value(sizes, observed)


def _mix(take_first: Tensor, first: Predictions, second: Predictions) -> Predictions:
    """Row by row the prediction of `first` or of `second`."""
    mixed = {}
    for name in ("confidence", "correct", "probs", "logits"):
        x, y = getattr(first, name), getattr(second, name)
        if x is not None and y is not None:
            mixed[name] = torch.where(take_first if x.ndim == 1 else take_first[:, None], x, y)
    return Predictions(**mixed, weight=first.weight, labels=first.labels)

"""Confidence intervals for metrics: bootstrap for any metric, closed forms where they are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import norm as normal
from torch import Tensor

from calibrant.metrics._gap_noise import dual_deviation, noise_norms
from calibrant.metrics._resampling import (
    Metric,
    call,
    check_level,
    draw_rows,
    marked,
    new_generator,
    quantiles,
    read_for,
)
from calibrant.metrics.binned import ace, bin_table, ece, mce
from calibrant.metrics.bins import Norm, Scheme, calibration_error
from calibrant.metrics.predictions import Binary, Predictions
from calibrant.metrics.scores import accuracy, brier, brier_terms, confidence_gap, nll, nll_terms, signed_gaps


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval [`low`, `high`] of the given `level`; `method` names how it was computed."""

    value: float
    low: float
    high: float
    level: float
    method: str

    def __repr__(self) -> str:
        return (
            f"Estimate({self.value:.4g}, {100 * self.level:g} % interval "
            f"[{self.low:.4g}, {self.high:.4g}]; {self.method})"
        )


def bootstrap_interval(
    probs: Any = None,
    labels: Any = None,
    *,
    metric: Metric = ece,
    level: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
    confidence: Any = None,
    correct: Any = None,
    from_logits: bool = False,
    binary: Binary | None = None,
    sample_weight: Any = None,
    **metric_arguments: Any,
) -> Estimate:
    """Basic bootstrap interval of any metric, by drawing rows with replacement.

    It reflects the quantiles, [2v − q_high, 2v − q_low]. Calibration errors are biased upwards; the bootstrap repeats
    this bias, and the reflection removes it. The interval is cut off at 0 for metrics that cannot be negative.

    It needs a metric that is smooth around the true value. A calibration error is not smooth if a gap is no larger
    than its noise. The interval then covers the true error less often than its level says, most of all for a calibrated
    model. For `ece`, `mce` and `ace` use `asymptotic_interval`, which is valid there too.

    `metric`, `seed` and `metric_arguments` are as in `noise_floor`, the other arguments as in `ece`.
    """
    check_level(level, n_resamples)
    keywords: dict[str, Any] = {"from_logits": from_logits, "binary": binary, "sample_weight": sample_weight}
    p = read_for(metric, probs, labels, confidence, correct, **keywords)
    value = call(metric, p, metric_arguments)
    generator = new_generator(seed, p.confidence.device)
    draws = [call(metric, p.take(draw_rows(len(p), generator)), metric_arguments) for _ in range(n_resamples)]
    low, high = quantiles(torch.tensor(draws, dtype=torch.float64, device="cpu"), level)
    low, high = 2 * value - high, 2 * value - low
    if marked(metric, "signed") is False:
        low, high = max(low, 0.0), max(high, 0.0)
    return Estimate(value, low, high, level, f"basic bootstrap, {n_resamples} resamples, seed {seed}")


def asymptotic_interval(
    probs: Any = None,
    labels: Any = None,
    *,
    metric: Metric = ece,
    level: float = 0.95,
    bins: int = 15,
    scheme: Scheme = "width",
    norm: Norm = "l1",
    confidence: Any = None,
    correct: Any = None,
    from_logits: bool = False,
    binary: Binary | None = None,
    sample_weight: Any = None,
) -> Estimate:
    """Interval from the central limit theorem, for the metrics that have one.

    These are `ece`, `mce`, `ace`, `nll`, `brier`, `accuracy` and `confidence_gap`.

    The last four are means of independent terms: value ± z·(standard error), with Wilson's form for the accuracy. `nll`
    and `brier` cannot be negative, so their intervals are cut off at 0.

    The binned errors are norms ‖g‖ of the vector of gaps, and ĝ is g plus nearly normal noise e. From below,
    ‖g‖ ≥ ‖ĝ‖ − ‖e‖, so the lower end subtracts a quantile of ‖e‖. From above, with u the dual vector of g,
    ‖ĝ‖ ≥ ⟨u, ĝ⟩ = ‖g‖ + ⟨u, e⟩, so the upper end adds a normal quantile times the largest deviation of ⟨u, e⟩. Both
    hold for every g, so the interval is valid for calibrated and miscalibrated models (the bootstrap is not), but
    somewhat wide. The true value that it covers is the error over the same bins if all frequencies were known exactly.
    Variances use the rate (hits + 1)/(n + 2), so that a bin without errors still has noise.

    `bins`, `scheme` and `norm` apply to the binned errors. The other arguments are as in `ece`.
    """
    check_level(level, 10**9)
    keywords: dict[str, Any] = {"from_logits": from_logits, "binary": binary, "sample_weight": sample_weight}
    p = read_for(metric, probs, labels, confidence, correct, **keywords)
    if metric in (ece, mce, ace):
        scheme = "mass" if metric is ace else scheme
        return _norm_interval(p, level, bins, scheme, "max" if metric is mce else norm)
    if metric is accuracy:
        return _wilson(p, level)
    terms = _MEANS.get(metric)
    if terms is None:
        metric_names = ", ".join(["ece", "mce", "ace", "accuracy", *(f.__name__ for f in _MEANS)])
        raise ValueError(
            f"metric must be one of {metric_names}; got {getattr(metric, '__name__', metric)!r}. "
            "Use bootstrap_interval for other metrics."
        )
    return _normal_interval(p, terms(p), level, lowest=-math.inf if marked(metric, "signed") else 0.0)


_MEANS: dict[Metric, Callable[[Predictions], Tensor]] = {
    nll: nll_terms,
    brier: brier_terms,
    confidence_gap: signed_gaps,
}


def _effective(p: Predictions) -> float:
    return float(len(p)) if p.weight is None else (p.weight.sum() ** 2 / (p.weight**2).sum()).item()


def _normal_interval(p: Predictions, terms: Tensor, level: float, lowest: float) -> Estimate:
    value = p.mean(terms)
    if not math.isfinite(value):
        raise ValueError(f"metric must be finite on this sample; got {value}. Pass logits instead of probabilities.")
    share = torch.full_like(terms, 1 / len(p)) if p.weight is None else p.weight / p.weight.sum()
    n = _effective(p)
    spread = (share**2 * (terms - value) ** 2).sum().item() * n / (n - 1) if n > 1 else math.inf
    half = normal.ppf((1 + level) / 2) * math.sqrt(spread)
    return Estimate(value, max(lowest, value - half), value + half, level, "normal limit")


def _wilson(p: Predictions, level: float) -> Estimate:
    value, n, z = p.mean(p.correct), _effective(p), normal.ppf((1 + level) / 2)
    centre = (value + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * math.sqrt(value * (1 - value) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return Estimate(value, max(0.0, centre - half), min(1.0, centre + half), level, "Wilson")


def _norm_interval(p: Predictions, level: float, bins: int, scheme: Scheme, norm: Norm) -> Estimate:
    sums = bin_table(p, bins, scheme)
    value = calibration_error(sums, norm, debias=False).item()
    one_sided = (1 + level) / 2
    below = torch.quantile(noise_norms(sums, norm), one_sided).item()
    above = normal.ppf(one_sided) * dual_deviation(sums, norm)
    return Estimate(value, max(0.0, value - below), min(1.0, value + above), level, "norm of the normal limit")

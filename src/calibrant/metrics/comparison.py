"""Paired comparison of two models on the same sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from calibrant.base.settings import check_choice
from calibrant.metrics._gap_noise import dual_deviation, noise_norms
from calibrant.metrics._resampling import (
    Metric,
    call,
    check_level,
    draw_rows,
    new_generator,
    quantiles,
    read_for,
    tail_p_value,
    unwrapped,
)
from calibrant.metrics.binned import ace, bin_table, ece, mce
from calibrant.metrics.bins import Norm, Scheme
from calibrant.metrics.predictions import Binary, Predictions


@dataclass(frozen=True)
class Comparison:
    """The metric of two models on one sample, and the difference a − b with its interval and p-value.

    `method` names the test that gave the interval [`low`, `high`] and `p_value`; `level` is the interval's level.
    """

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
    test: Literal["auto", "bound", "bootstrap"] = "auto",
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

    Parameters
    ----------
    probs_a, probs_b : arrays or tensors of shape (n, C)
        The class probabilities of the two models.
    labels : array or tensor of shape (n,)
        True classes.
    test : {"auto", "bound", "bootstrap"}
        How the interval and the p-value are computed. Up to the resolution of the draws, the p-value is below
        1 − level if the interval excludes 0, and above otherwise.

        - "bound", for `ece`, `mce` and `ace`: the bounds of `asymptotic_interval` on both errors. It is valid for
          all sizes of the two errors and of their noise floors, and therefore cautious.
        - "bootstrap": the basic bootstrap of the paired difference. Both models see the same draws, so sampling noise
          that they share cancels. Use it for `nll`, `brier`, `accuracy` and `confidence_gap`. For calibration errors
          it rejects too often if the gaps are no larger than their noise.
        - "auto": "bound" where it is defined, otherwise "bootstrap".
    confidence, correct : pairs of arrays or tensors of shape (n,)
        Predictions in another form, instead of probabilities: (of model a, of model b).
    from_logits, binary, sample_weight
        As in `ece`.
    metric, level, n_resamples, seed, **metric_arguments
        As in `noise_floor` and `bootstrap_interval`.

    Returns
    -------
    Comparison
        The metric of both models, and their difference a − b with its interval and p-value.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.metrics import compare, nll
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(500, 2))
    >>> labels = (logits + rng.gumbel(size=(500, 2))).argmax(axis=1)
    >>> right, sharp = (np.exp(k * logits) / np.exp(k * logits).sum(axis=1, keepdims=True) for k in (1, 3))
    >>> compare(right, sharp, labels, metric=nll).high < 0
    True
    """
    check_level(level, n_resamples)
    check_choice("test", test, ("auto", "bound", "bootstrap"))
    metric, metric_arguments = unwrapped(metric, metric_arguments)
    bounded = metric in (ece, mce, ace) and not metric_arguments.get("debias", False)
    if test == "bound" and not bounded:
        raise ValueError("metric must be ece, mce or ace without debias for test='bound'; use test='bootstrap'.")
    keywords: dict[str, Any] = {"from_logits": from_logits, "binary": binary, "sample_weight": sample_weight}
    a, b = _read_both(metric, (probs_a, probs_b), labels, confidence, correct, **keywords)
    values = call(metric, a, metric_arguments), call(metric, b, metric_arguments)
    difference = values[0] - values[1]
    if test == "bound" or (test == "auto" and bounded):
        ends = _bound(a, b, difference, level, seed, metric, **metric_arguments)
        return Comparison(*values, difference, *ends, level, f"bounds for the norms of gaps, seed {seed}")
    generator = new_generator(seed, a.confidence.device)
    draws = torch.empty(n_resamples, dtype=torch.float64, device="cpu")
    for i in range(n_resamples):
        rows = draw_rows(len(a), generator)
        draws[i] = call(metric, a.take(rows), metric_arguments) - call(metric, b.take(rows), metric_arguments)
    low, high = quantiles(draws, level)  # of the basic bootstrap
    upper, lower = tail_p_value(draws, 2 * difference), tail_p_value(-draws, -2 * difference)
    ends = 2 * difference - high, 2 * difference - low, min(1.0, 2 * min(upper, lower))
    return Comparison(*values, difference, *ends, level, f"paired bootstrap, {n_resamples} resamples, seed {seed}")


def _bound(
    a: Predictions,
    b: Predictions,
    difference: float,
    level: float,
    seed: int,
    metric: Metric,
    bins: int = 15,
    scheme: Scheme = "width",
    norm: Norm = "l1",
    debias: bool = False,
) -> tuple[float, float, float]:
    """Interval and p-value from ‖ĝ‖ − ‖e‖ ≤ ‖g‖ ≤ ‖ĝ‖ − ⟨u, e⟩ for both models."""
    scheme, norm = "mass" if metric is ace else scheme, "max" if metric is mce else norm
    sums = [bin_table(p, bins, scheme) for p in (a, b)]
    generator = new_generator(seed, torch.device("cpu"))
    # excess[i]: how far model i's ‖e‖ and the other model's ⟨u, e⟩ together can raise the difference. One is even and
    # the other odd in the noise, so they are uncorrelated; they are drawn as independent.
    excess = []
    for model, other_model in ((0, 1), (1, 0)):
        size = noise_norms(sums[model], norm, seed).cpu()
        tilt = torch.randn(len(size), generator=generator, dtype=torch.float64, device="cpu")
        excess.append(size + dual_deviation(sums[other_model], norm) * tilt)
    tail = (1 + level) / 2
    low = difference - torch.quantile(excess[0], tail).item()
    high = difference + torch.quantile(excess[1], tail).item()
    p_value = tail_p_value(excess[0 if difference >= 0 else 1], abs(difference))
    return low, high, min(1.0, 2 * p_value)


def _read_both(
    metric: Metric, probs: tuple[Any, Any], labels: Any, confidence: Any, correct: Any, **keywords: Any
) -> tuple[Predictions, Predictions]:
    for name, pair in (("confidence", confidence), ("correct", correct)):
        if pair is not None and not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise ValueError(f"{name} must be a pair (of model a, of model b); got {type(pair).__name__}.")
    pairs = zip(probs, confidence or (None, None), correct or (None, None), strict=True)
    a, b = (read_for(metric, p, labels, c, hit, **keywords) for p, c, hit in pairs)
    if len(a) != len(b):
        raise ValueError(f"Both models must predict the same samples; got {len(a)} and {len(b)} predictions.")
    if a.probs is not None and b.probs is not None and a.probs.shape != b.probs.shape:
        raise ValueError(
            f"Both models must have the same classes; got {a.probs.shape[1]} and {b.probs.shape[1]} columns."
        )
    return a, b

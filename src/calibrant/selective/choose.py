"""Choosing a threshold: for a target risk, a target coverage, or given costs.

Each function takes a sample that was not used to train or calibrate the model and returns a
`RejectionRule`. What is guaranteed, and under which assumption, is the theorem in the function's docstring;
where nothing is guaranteed the rule's `level` is None.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import binom

from calibrant.selective._arrays import accepted_counts, as_pair, check_fraction
from calibrant.selective.rule import RejectionRule, Window
from calibrant.selective.uniform import uniform_risk_bound

_METHODS = ("uniform", "fixed-sequence", "grid")
# Starting points of the fixed sequences are so far apart: 1.5 kept most of the coverage over 1.3 to 4.
_START_RATIO = 1.5


def threshold_for_risk(
    confidence: Any,
    correct: Any,
    risk: float,
    *,
    level: float = 0.95,
    method: str = "uniform",
    thresholds: Any = None,
) -> RejectionRule:
    """Choose the threshold with the largest coverage whose risk is at most `risk`, guaranteed on new data.

    **Guarantee.** With probability at least `level` over the sample, R(t̂) = P(wrong | c ≥ t̂) ≤ `risk` for
    the threshold t̂ that is returned (samples independent, new data from the same distribution).

    Parameters
    ----------
    confidence, correct
        The sample, shape (n,) each.
    risk, level
        The risk allowed, and the probability of keeping to it.
    method
        "uniform": from the bound for all thresholds at once (`uniform_risk_bound`). No assumption.

        "fixed-sequence": more coverage, if R(t) does not grow with the threshold: the more confident, the
        less often wrong. The exact binomial p-value of "R(t) > risk" is P(Bin(N, risk) ≤ E) with N accepted
        and E errors; going down from a fixed number of accepted samples, thresholds pass as long as every
        p-value is ≤ δ/J, from J starting points laid down before (Learn then Test, Angelopoulos et al.
        2021). *Proof.* Let t* = sup{t : R(t) > risk}, m samples lie at or above it. R(t*) ≥ risk by left
        continuity, and monotone R means P(wrong | c) ≥ risk below t*. Given m and the confidences below t*,
        the errors among the first N ≥ m samples are therefore stochastically at least Bin(N, risk). To pass
        t*, a sequence must pass the test at N = m or, starting beyond it, its first test; either has
        probability ≤ δ/J. Sum over the J sequences. ∎

        "grid": among the given `thresholds`, which must have been fixed without looking at this sample;
        Holm's step-down correction of the same p-values. No assumption; best with few thresholds.

        (The search of Geifman & El-Yaniv 2017, SGR, divides δ by log₂ n although the thresholds that its
        bisection visits depend on the labels; that step is not covered by its proof and is not used here.)
    thresholds
        For "grid" only.

    Returns
    -------
    RejectionRule
        With `found=False` where no threshold meets the target.
    """
    risk, level = check_fraction(risk, "risk"), check_fraction(level, "level")
    if method not in _METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, _METHODS))}, got {method!r}.")
    if (thresholds is not None) != (method == "grid"):
        raise ValueError(
            "thresholds= belongs to method='grid' and is needed there: a list fixed without looking at this sample."
        )
    if method == "uniform":
        return uniform_risk_bound(confidence, correct, level=level, two_sided=False).best_window(risk)
    conf, hits = as_pair(confidence, correct)
    if method == "grid":
        return _from_grid(conf, hits, risk, level, np.unique(np.asarray(thresholds, np.float64))[::-1])
    return _from_sequences(conf, hits, risk, level)


def _from_sequences(conf: np.ndarray, hits: np.ndarray, risk: float, level: float) -> RejectionRule:
    threshold, accepted, errors = accepted_counts(conf, hits)
    starts = _starts(len(conf), risk, 1 - level)
    passes = binom.cdf(errors, accepted, risk) <= (1 - level) / max(1, len(starts))
    best = -1
    for start in starts:
        first = int(np.searchsorted(accepted, start))
        failures = np.flatnonzero(~passes[first:])
        best = max(best, (first + failures[0] if len(failures) else len(passes)) - 1 if passes[first] else -1)
    window = Window.below(threshold[best]) if best >= 0 else None
    return _rule(conf, hits, window, risk, level, "fixed-sequence test")


def _starts(n: int, risk: float, delta: float) -> list[int]:
    """Numbers of accepted samples at which a sequence begins: n, n/1.5, ... while 0 errors would pass."""
    starts: list[int] = []
    while True:
        count = int(n / _START_RATIO ** len(starts))
        # One more start lowers the level of all, so that the smallest must be checked again with it.
        if count < 1 or (1 - risk) ** count > delta / (len(starts) + 1):
            return starts
        starts.append(count)


def _from_grid(conf: np.ndarray, hits: np.ndarray, risk: float, level: float, thresholds: np.ndarray) -> RejectionRule:
    if not len(thresholds) or not np.isfinite(thresholds).all():
        raise ValueError(f"thresholds must be a non-empty list of finite numbers, got {thresholds}.")
    accepted = len(conf) - np.searchsorted(np.sort(conf), thresholds)
    errors = (~hits).sum() - np.searchsorted(np.sort(conf[~hits]), thresholds)
    p_values = binom.cdf(errors, accepted, risk)  # 1 where nothing is accepted
    order = np.argsort(p_values, kind="stable")
    passes = p_values[order] <= (1 - level) / np.arange(len(order), 0, -1)  # Holm 1979
    passed = order[: len(order) if passes.all() else int(np.argmin(passes))]
    window = Window.below(thresholds[passed].min()) if len(passed) else None
    return _rule(conf, hits, window, risk, level, f"Holm over {len(thresholds)} fixed thresholds")


def _rule(
    conf: np.ndarray, hits: np.ndarray, window: Window | None, risk: float, level: float, method: str
) -> RejectionRule:
    coverage, sample_risk = _on_sample(conf, hits, window)
    bound = risk if window is not None else None
    return RejectionRule(window, "risk", risk, method, len(conf), coverage, sample_risk, level, bound)


def _on_sample(conf: np.ndarray, hits: np.ndarray, window: Window | None) -> tuple[float, float]:
    if window is None:
        return 0.0, np.nan
    kept = window.accepts(conf)
    return float(kept.mean()), float((~hits[kept]).mean()) if kept.any() else np.nan


def threshold_for_coverage(
    confidence: Any, correct: Any, coverage: float, *, level: float | None = None
) -> RejectionRule:
    """Choose the highest threshold that accepts at least `coverage`; without labels, say `correct=None`.

    Without `level`, of this sample. With it, of new data with probability at least `level`: the k-th
    largest confidence with the smallest k such that P(Bin(n, coverage) < k) ≥ level (a distribution-free
    tolerance limit, Wilks 1941; atoms can only raise the coverage). Where even k = n is not enough,
    everything is accepted.
    """
    coverage = check_fraction(coverage, "coverage")
    known = correct is not None
    conf, hits = as_pair(confidence, correct if known else np.zeros(len(confidence), bool))
    n = len(conf)
    if level is None:
        k = int(np.ceil(coverage * n * (1 - 1e-12)))
    else:
        k = int(binom.ppf(check_fraction(level, "level"), n, coverage)) + 1
    window = Window.below(np.sort(conf)[n - k]) if k <= n else Window.below(-np.inf)
    kept, risk = _on_sample(conf, hits, window)
    method = "sample quantile" if level is None else "tolerance limit"
    return RejectionRule(window, "coverage", coverage, method, n, kept, risk if known else np.nan, level)


def chow_threshold(error_cost: float, rejection_cost: float) -> float:
    """Return Chow's threshold 1 − rejection_cost / error_cost: answer where the confidence reaches it.

    An answer costs (1 − c)·error_cost on average if the confidence c is calibrated, silence costs
    rejection_cost; the rule that takes the cheaper one is optimal (Chow 1970). Costs are relative to a
    correct answer. For a confidence that is not calibrated see `threshold_for_cost`.
    """
    if not (np.isfinite(error_cost) and np.isfinite(rejection_cost) and 0 <= rejection_cost <= error_cost != 0):
        raise ValueError(
            "costs must satisfy 0 ≤ rejection_cost ≤ error_cost and error_cost > 0, "
            f"got rejection_cost={rejection_cost:g}, error_cost={error_cost:g}. "
            "Where silence costs more than an error, never reject."
        )
    return 1 - rejection_cost / error_cost


def threshold_for_cost(
    confidence: Any, correct: Any, *, error_cost: float, rejection_cost: float, calibrated: bool = False
) -> RejectionRule:
    """Choose the threshold with the smallest average cost of errors and rejections.

    The cost is error_cost·P(accepted, wrong) + rejection_cost·P(rejected).

    By default the minimiser of this average over the sample, for any score; of equal ones the largest
    coverage. With `calibrated=True` Chow's rule, which trusts the confidence and does not use `correct` to
    choose. The rule's `target` is the average cost on the sample; no guarantee is attached.
    """
    limit = chow_threshold(error_cost, rejection_cost)
    conf, hits = as_pair(confidence, correct)
    n = len(conf)
    if calibrated:
        window, method = Window.below(limit), "Chow's rule"
    else:
        threshold, accepted, errors = accepted_counts(conf, hits)
        threshold, accepted, errors = (
            np.append(np.inf, threshold),
            np.append(0, accepted),
            np.append(0, errors),
        )
        costs = error_cost * errors + rejection_cost * (n - accepted)
        cheapest = np.flatnonzero(costs <= costs.min() + 1e-12 * error_cost * n)[-1]
        window, method = Window.below(threshold[cheapest]), "smallest average cost on the sample"
    kept = window.accepts(conf)
    cost = float(np.where(kept, error_cost * ~hits, rejection_cost).mean())
    return RejectionRule(window, "cost", cost, method, n, *_on_sample(conf, hits, window))

"""Thresholds for a target coverage, or for given costs of an error and a rejection.

Each function takes a sample that was not used to train the model and returns a `RejectionRule`. The rule's `level` is
None if nothing is guaranteed on new data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import binom

from calibrant.base.settings import check_fraction
from calibrant.selective.curve import accepted_counts, as_pair
from calibrant.selective.rule import RejectionRule, Window, on_sample


def threshold_for_coverage(
    confidence: Any, correct: Any, coverage: float, *, level: float | None = None
) -> RejectionRule:
    """Choose the highest threshold that accepts at least `coverage`; without labels, pass `correct=None`.

    Without `level`, the coverage is that of this sample. With `level`, it holds on new data with probability at least
    `level`: the threshold is the k-th largest confidence, with the smallest k such that P(Bin(n, coverage) < k) ≥ level
    (a distribution-free tolerance limit, Wilks 1941; atoms can only raise the coverage). If even k = n is not enough,
    everything is accepted.
    """
    coverage = check_fraction(coverage, "coverage")
    conf, hits = as_pair(confidence, np.zeros(np.shape(confidence), bool) if correct is None else correct)
    n = len(conf)
    if level is None:
        k = int(np.ceil(coverage * n * (1 - 1e-12)))
    else:
        k = int(binom.ppf(check_fraction(level, "level"), n, coverage)) + 1
    window = Window.below(np.sort(conf)[n - k]) if k <= n else Window.below(-np.inf)
    accepted, risk = on_sample(conf, hits, window)
    method = "sample quantile" if level is None else "tolerance limit"
    return RejectionRule(window, "coverage", coverage, method, n, accepted, np.nan if correct is None else risk, level)


def chow_threshold(error_cost: float, rejection_cost: float) -> float:
    """Return Chow's threshold 1 − rejection_cost / error_cost: answer if the confidence reaches it.

    If the confidence c is calibrated, an answer costs (1 − c)·error_cost on average, and a rejection costs
    rejection_cost. Choosing the cheaper of the two is optimal (Chow 1970). Costs are relative to a correct answer. For
    a confidence that is not calibrated see `threshold_for_cost`.
    """
    if not (np.isfinite(error_cost) and np.isfinite(rejection_cost) and 0 <= rejection_cost <= error_cost != 0):
        raise ValueError(
            "costs must satisfy 0 ≤ rejection_cost ≤ error_cost and error_cost > 0; "
            f"got rejection_cost={rejection_cost:g}, error_cost={error_cost:g}. "
            "If a rejection costs more than an error, never reject."
        )
    return 1 - rejection_cost / error_cost


def threshold_for_cost(
    confidence: Any, correct: Any, *, error_cost: float, rejection_cost: float, calibrated: bool = False
) -> RejectionRule:
    """Choose the threshold with the smallest average cost of errors and rejections.

    The cost is error_cost·P(accepted, wrong) + rejection_cost·P(rejected).

    By default this average over the sample is minimised, for any score; among equal costs the largest coverage is
    chosen. `calibrated=True` uses Chow's rule, which trusts the confidence and does not need `correct` for the choice.
    The rule's `target` is the average cost on the sample. Nothing is guaranteed.
    """
    limit = chow_threshold(error_cost, rejection_cost)
    conf, hits = as_pair(confidence, correct)
    n = len(conf)
    if calibrated:
        window, method = Window.below(limit), "Chow's rule"
    else:
        threshold, accepted, errors = accepted_counts(conf, hits)
        threshold, accepted, errors = (np.append(np.inf, threshold), np.append(0, accepted), np.append(0, errors))
        costs = error_cost * errors + rejection_cost * (n - accepted)
        cheapest = np.flatnonzero(costs <= costs.min() + 1e-12 * error_cost * n)[-1]
        window, method = Window.below(threshold[cheapest]), "smallest average cost on the sample"
    accepts = window.accepts(conf)
    cost = float(np.where(accepts, error_cost * ~hits, rejection_cost).mean())
    return RejectionRule(window, "cost", cost, method, n, *on_sample(conf, hits, window))

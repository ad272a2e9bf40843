"""A threshold for a target risk, with a finite-sample guarantee.

**Guarantee.** With probability at least 1 − δ over the sample, the threshold t̂ that is returned has R(t̂) ≤ r, where
R(t) = P(wrong | c ≥ t) and r is the allowed risk. Samples are independent, and new data have the same distribution.

All methods use the exact binomial p-value of "R > r": P(Bin(N, r) ≤ E) with N accepted samples and E errors. They
differ in how they correct for trying many thresholds.

**Ranks** (no assumption). Fix numbers m_1..m_J before looking: n, n/1.1, n/1.1², ... For each m let t be the
(m + 1)-th largest confidence, accept c > t strictly, and test at level δ/J.
*Proof.* Let each sample carry a uniform tie-breaker and look at the one of rank m + 1, at confidence t. Given it, the m
samples before it are independent draws from those that precede it; given how many of these have c = t, the others
are independent draws from c > t, so that E ~ Bin(N, R(> t)). The p-value is valid for each m, and J of them are
tried. ∎ (Geifman & El-Yaniv 2017, SGR, divide δ by log₂ n although the thresholds that their bisection visits depend
on the labels, so that the union bound does not cover them. The ranks here are fixed.)

**Fixed sequence** (Learn then Test, Angelopoulos et al. 2021; assumes that R does not grow with the threshold: the
more confident, the less often wrong). From each of J fixed numbers of accepted samples, n, n/1.5, ..., thresholds are
lowered as long as every p-value is ≤ δ/J.
*Proof.* Let t* = sup{t : R(t) > r}, with m samples at or above it. R(t*) ≥ r by left continuity, and monotone R means
P(wrong | c) ≥ r below t*. Given m and the confidences below t*, the errors among the first N ≥ m samples are therefore
stochastically at least Bin(N, r). To go beyond t*, a sequence must pass its test at N = m or, starting later, its
first test; either happens with probability ≤ δ/J. Sum over the sequences. ∎

**Uniform** (no assumption). From the bound for all thresholds at once, see `calibrant.selective.uniform`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import binom

from calibrant.base.settings import check_choice, check_fraction
from calibrant.selective.curve import accepted_counts, as_pair
from calibrant.selective.rule import RejectionRule, Window, on_sample
from calibrant.selective.uniform import uniform_risk_bound

# Denser ranks find the best coverage more exactly, but leave less of δ for each. On simulated data with 300 to 10,000
# samples, 1.1 was a good compromise, and 1.5 for the starts of the sequences.
_RANK_RATIO = 1.1
_START_RATIO = 1.5


def threshold_for_risk(
    confidence: Any, correct: Any, risk: float, *, level: float = 0.95, method: str = "ranks"
) -> RejectionRule:
    """Choose the threshold with the largest coverage whose risk is at most `risk`, guaranteed on new data.

    With probability at least `level` over the sample, the error rate of accepted predictions on new data is at most
    `risk`; theorems and proofs in the module's docstring.

    Parameters
    ----------
    confidence, correct : arrays or tensors of shape (n,)
        A sample that was not used to train or calibrate the model, shape (n,) each.
    risk, level : float
        The allowed risk, and the probability of meeting it.
    method : {"ranks", "fixed-sequence", "uniform"}
        "ranks": no assumption; the default.
        "fixed-sequence": more coverage; assumes that more confident predictions are wrong less often.
        "uniform": no assumption; slightly more coverage than "ranks" from a few thousand samples on. Its bound holds
        for all thresholds, so `uniform_risk_bound` lets you look at them first.

    Returns
    -------
    RejectionRule
        With `found=False` if no threshold meets the target.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.selective import threshold_for_risk
    >>> rng = np.random.default_rng(0)
    >>> confidence = rng.uniform(0.5, 1, 2000)
    >>> correct = rng.uniform(size=2000) < confidence
    >>> rule = threshold_for_risk(confidence, correct, risk=0.1)
    >>> rule.found, rule.risk_bound <= 0.1
    (True, True)
    >>> bool(rule.accepts([0.99])[0]), bool(rule.accepts([0.5])[0])
    (True, False)
    """
    risk, level = check_fraction(risk, "risk"), check_fraction(level, "level")
    check_choice("method", method, ("ranks", "fixed-sequence", "uniform"))
    if method == "uniform":
        return uniform_risk_bound(confidence, correct, level=level, two_sided=False).best_window(risk)
    conf, hits = as_pair(confidence, correct)
    if method == "ranks":
        window, description = _from_ranks(conf, hits, risk, 1 - level), "exact test at fixed ranks"
    else:
        window, description = _from_sequences(conf, hits, risk, 1 - level), "fixed-sequence test"
    bound = risk if window is not None else None
    return RejectionRule(window, "risk", risk, description, len(conf), *on_sample(conf, hits, window), level, bound)


def _from_ranks(conf: np.ndarray, hits: np.ndarray, risk: float, delta: float) -> Window | None:
    ranks = fixed_counts(len(conf), risk, delta, _RANK_RATIO)
    if not ranks:
        return None
    # Limits from low to high: −inf accepts everything; the (m + 1)-th largest of n has n − m − 1 below it.
    limits = np.append(-np.inf, np.sort(conf))[len(conf) - np.array(ranks)]
    accepted = len(conf) - np.searchsorted(np.sort(conf), limits, side="right")
    errors = (~hits).sum() - np.searchsorted(np.sort(conf[~hits]), limits, side="right")
    passes = binom.cdf(errors, accepted, risk) <= delta / len(ranks)  # nothing accepted has p-value 1
    if not passes.any():
        return None
    lowest = limits[passes].min()
    return Window.below(np.nextafter(lowest, np.inf) if np.isfinite(lowest) else lowest)


def _from_sequences(conf: np.ndarray, hits: np.ndarray, risk: float, delta: float) -> Window | None:
    threshold, accepted, errors = accepted_counts(conf, hits)
    starts = fixed_counts(len(conf), risk, delta, _START_RATIO)
    passes = binom.cdf(errors, accepted, risk) <= delta / max(1, len(starts))
    best = -1
    for start in starts:
        first = int(np.searchsorted(accepted, start))
        failures = np.flatnonzero(~passes[first:])
        best = max(best, (first + failures[0] if len(failures) else len(passes)) - 1 if passes[first] else -1)
    return Window.below(threshold[best]) if best >= 0 else None


def fixed_counts(n: int, risk: float, delta: float, ratio: float) -> list[int]:
    """Numbers of accepted samples n, n/ratio, ..., as long as 0 errors would still pass at level δ/J."""
    counts: list[int] = []
    while True:
        count = int(n / ratio ** len(counts))
        count = min(count, counts[-1] - 1) if counts else count
        # One more count lowers the level of all of them, so the smallest count must be checked again.
        if count < 1 or (1 - risk) ** count > delta / (len(counts) + 1):
            return counts
        counts.append(count)

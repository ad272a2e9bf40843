"""Odds of one class against the others, from log-probabilities and without cancellation."""

from __future__ import annotations

import numpy as np

from calibrant.posthoc._base import Floats


def log_complement(log_p: Floats) -> Floats:
    """log(1 - p) for rows of log-probabilities; accurate even if p rounds to 1."""
    rows = np.arange(len(log_p))
    top = log_p.argmax(axis=1)
    rest = log_p.copy()
    rest[rows, top] = -np.inf
    highest = rest.max(axis=1)
    with np.errstate(divide="ignore"):
        result = np.log1p(-np.exp(np.minimum(log_p, 0.0)))
        # 1 - p of the top class is the sum of the others: no cancellation.
        result[rows, top] = highest + np.log(np.exp(rest - highest[:, None]).sum(axis=1))
    return result


def log_odds(log_p: Floats) -> Floats:
    """log(p / (1 - p)) of every class against all the others."""
    return log_p - log_complement(log_p)

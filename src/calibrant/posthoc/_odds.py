"""Odds of one class against the others, from log-probabilities and without cancellation."""

from __future__ import annotations

import torch

from calibrant.base.classes import logsumexp_of_others
from calibrant.posthoc._base import Floats


def log_complement(log_p: Floats) -> Floats:
    """log(1 - p) for rows of log-probabilities; accurate even if p rounds to 1."""
    result: Floats = logsumexp_of_others(torch.from_numpy(log_p)).numpy()
    return result


def log_odds(log_p: Floats) -> Floats:
    """log(p / (1 - p)) of every class against all the others."""
    return log_p - log_complement(log_p)

"""Calibration error against a known posterior: no labels, hence no label noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant._inputs import check_probs
from calibrant.metrics.binned import ece


def true_ece(probs: Any, posterior: Any, *, bins: int = 15) -> float:
    """ECE with each prediction's *probability* of being right in place of whether it was.

    ``Σ_m |B_m|/n · |mean_{i∈B_m} (p_i − conf_i)|`` with ``p_i`` the exact posterior of the predicted class. Unlike an
    ECE from labels it has no noise floor: the posterior itself scores 0.
    """
    probs, truth = (np.asarray(check_probs(p).cpu(), dtype=np.float64) for p in (probs, posterior))
    if probs.shape != truth.shape:
        raise ValueError(
            f"probs has shape {probs.shape} and posterior {truth.shape}; they must be of the same samples."
        )
    predicted = probs.argmax(1)
    rows = np.arange(len(probs))
    confidence, right = probs[rows, predicted], truth[rows, predicted]
    # A prediction that is right with probability p counts as p of a right one and 1 − p of a wrong one.
    value = ece(
        confidence=np.concatenate([confidence, confidence]),
        correct=np.repeat([True, False], len(rows)),
        sample_weight=np.concatenate([right, 1 - right]),
        bins=bins,
    )
    return float(value)  # type: ignore[arg-type]

"""Checks and counts that the functions of this package share."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.base.inputs import check_confidence
from calibrant.selective.rule import Window


def as_pair(confidence: Any, correct: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return validated (confidence, correct) as float64 and bool arrays on the CPU.

    float64 represents every float16, bfloat16 and float32 exactly, so a threshold taken from the sample divides the
    sample as before.
    """
    conf, hits = check_confidence(confidence, correct)
    return conf.double().cpu().numpy(), hits.cpu().numpy()


def accepted_counts(confidence: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct confidences from high to low, and how many samples and errors lie at or above each."""
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence = confidence[order]
    errors = np.cumsum(~correct[order])
    last_of_tie = np.append(np.flatnonzero(np.diff(sorted_confidence)), len(sorted_confidence) - 1)
    return sorted_confidence[last_of_tie], last_of_tie + 1, errors[last_of_tie]


def on_sample(confidence: np.ndarray, correct: np.ndarray, window: Window | None) -> tuple[float, float]:
    """Share of the sample that a window accepts, and its error rate; NaN if nothing is accepted."""
    if window is None:
        return 0.0, np.nan
    accepted = window.accepts(confidence)
    return float(accepted.mean()), float((~correct[accepted]).mean()) if accepted.any() else np.nan

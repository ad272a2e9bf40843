"""Calibration error against a known posterior, free of label noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.base.inputs import as_tensor, check_probs
from calibrant.metrics.binned import ece


def true_ece(
    probs: Any = None, posterior: Any = None, *, bins: int = 15, confidence: Any = None, right: Any = None
) -> float:
    """ECE with each prediction's *probability* of being right instead of whether it was right.

    ``Σ_m |B_m|/n · |mean_{i∈B_m} (p_i − conf_i)|`` with ``p_i`` the exact posterior of the predicted class. Unlike an
    ECE from labels it has no noise floor: the posterior itself scores 0.

    Parameters
    ----------
    probs, posterior : arrays or tensors of shape (n, C)
        Probabilities of the model and of the truth, for the same samples.
    bins : int
        Number of bins of equal width.
    confidence, right : arrays or tensors of shape (n,)
        Predictions in another form: the model's probability of the class that it predicts, which need not be its
        largest, and the true probability of that class.
    """
    if (probs is None) != (posterior is None) or (confidence is None) != (right is None):
        raise ValueError("Give probs with posterior, or confidence= with right=; one of a pair is missing.")
    if (probs is None) == (confidence is None):
        raise ValueError("Give either probs and posterior, or confidence= and right=.")
    if probs is not None:
        confidence, right = _of_predicted(probs, posterior)
    inputs = (("confidence", confidence), ("right", right))
    confidence, right = (as_tensor(value, name).cpu().double().numpy() for name, value in inputs)
    if confidence.shape != right.shape:
        raise ValueError(f"confidence and right must have the same shape; got {confidence.shape} and {right.shape}.")
    # A prediction that is right with probability p counts as p right and 1 − p wrong predictions.
    value = ece(
        confidence=np.concatenate([confidence, confidence]),
        correct=np.repeat([True, False], len(confidence)),
        sample_weight=np.concatenate([right, 1 - right]),
        bins=bins,
    )
    return float(value)


def _of_predicted(probs: Any, posterior: Any) -> tuple[np.ndarray, np.ndarray]:
    """The model's and the true probability of the class that the model predicts."""
    model, truth = (np.asarray(check_probs(p).cpu(), dtype=np.float64) for p in (probs, posterior))
    if model.shape != truth.shape:
        raise ValueError(f"probs and posterior must have the same shape; got {model.shape} and {truth.shape}.")
    rows, predicted = np.arange(len(model)), model.argmax(1)
    return model[rows, predicted], truth[rows, predicted]

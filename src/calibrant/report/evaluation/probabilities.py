"""Check the probabilities or logits of a file, and rescale rows of rounded probabilities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from calibrant.base.inputs import are_probs
from calibrant.base.warning import warn
from calibrant.report.evaluation.arrays import first_row

# A row sum this close to 1 needs no correction.
_SLACK = 1e-3
# A sum further from 1 than this is not corrected, even if rounding explains it.
_MOST = 0.05


def check_values(values: np.ndarray, path: Path) -> np.ndarray:
    """Return probabilities, (n, C) or (n,), whose rows sum to 1; an error says what else the numbers may be.

    Rows of rounded probabilities are divided by their sum, with a warning.
    """
    if len(values) == 0:
        return values
    low, high = float(values.min()), float(values.max())
    if low < -1e-6 or high > 1 + 1e-6:
        percent = values.ndim == 2 and low >= 0 and np.allclose(values.sum(axis=1), 100, rtol=0, atol=5)
        advice = "These are percentages: divide them by 100." if percent else "Use --logits if these are logits."
        raise ValueError(
            f"The probabilities of {path.name} must lie in [0, 1]; got values from {low:.6g} to {high:.6g}. {advice}"
        )
    if values.ndim == 1:
        return values
    sums = values.sum(axis=1)
    gaps = np.abs(sums - 1)
    worst = int(gaps.argmax())
    if gaps[worst] <= _SLACK:
        return values
    digits = _digits(values)
    if digits is None or gaps[worst] > min(_MOST, values.shape[1] * 0.5 * 10.0**-digits + 1e-9):
        raise ValueError(
            f"Each row of probabilities of {path.name} must sum to 1; got {sums[worst]:.6g} in row "
            f"{worst + first_row(path)}. Use --logits if these are logits, and --columns if a column is missing."
        )
    warn(
        f"The probabilities of {path.name} are rounded to {digits} decimals, so their sums differ from 1 by up to "
        f"{gaps[worst]:.2g}. Each row is divided by its sum."
    )
    return np.asarray(values / sums[:, None])


def check_logit_values(values: np.ndarray, path: Path) -> None:
    """Raise an error if the logits of a file are probabilities."""
    if values.ndim == 2 and are_probs(torch.from_numpy(np.ascontiguousarray(values, dtype=float))):
        raise ValueError(
            f"The logits of {path.name} are probabilities: each row lies in [0, 1] and sums to 1. Leave out --logits, "
            "and name the columns prob_<class>, not logit_<class>."
        )


def _digits(values: np.ndarray) -> int | None:
    """The number of decimals that the values are rounded to; None if it is more than 4."""
    return next((d for d in range(1, 5) if np.abs(values - values.round(d)).max() < 1e-9), None)

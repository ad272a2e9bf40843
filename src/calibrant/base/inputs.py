"""Validate predictions: probabilities, logits, confidences and weights; :mod:`calibrant.base.labels` has labels.

The inputs are numpy arrays, torch tensors on any device, or plain sequences. The outputs are detached torch tensors on
the device of the input. float32 and float64 are kept; float16 and bfloat16 become float32, which is exact. Invalid
input raises a ValueError that says what was expected, what was given, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.base.warning import warn

Array: TypeAlias = np.ndarray | Tensor | Sequence[Any]

# Rounding can push a probability this far outside [0, 1]; larger excess is an error.
_RANGE_SLACK = 1e-6
# Largest accepted distance of a row sum from 1; predictions are often stored with few digits.
_ROW_SUM_SLACK = 1e-3 + 1e-9
_ROW_SUM_SLACK_HALF = 1e-2
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Logits:
    """An array of logits: ``ece(Logits(x), labels)`` equals ``ece(x, labels, from_logits=True)``."""

    values: Array


def as_tensor(values: Any, name: str) -> Tensor:
    """Turn an array, tensor or sequence into a detached tensor, without a copy if possible."""
    if isinstance(values, Logits):
        raise ValueError(f"{name} must be an array; got Logits(...). Only probs and logits can be Logits.")
    if isinstance(values, Tensor):
        tensor = values.detach()
        # The sums need float64, which Apple's GPU backend lacks.
        return tensor.cpu() if tensor.device.type == "mps" else tensor
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must not have masked entries; drop those rows first.")
    if values is None:
        raise ValueError(f"{name} must be an array or a tensor; got None.")
    array = as_rectangular(values, name)
    if callable(values) or hasattr(type(values), "predict"):
        raise ValueError(f"{name} must be an array of numbers; got a {type(values).__name__}. Pass its predictions.")
    return torch.from_numpy(shareable(array, name))


def as_rectangular(values: Any, name: str) -> np.ndarray:
    """`np.asarray`, with a sentence for rows of unequal length."""
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be a rectangular array; got rows of unequal length.") from None


def shareable(values: Any, name: str = "inputs") -> Any:
    """An array of numbers that torch can share memory with, copied if necessary; not an array: unchanged."""
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype.kind not in "biufc":
        example = next(iter(values.ravel().tolist()), None)
        shown = f"text such as {example!r}" if isinstance(example, str) else f"values of type {type(example).__name__}"
        shown = "dates or durations" if values.dtype.kind in "mM" else shown
        hint = f" The order of arguments is {name}, labels." if name in ("probs", "logits") else ""
        raise ValueError(
            f"{name} must be an array of numbers; got {shown}. Encode text as numbers; convert numbers that are stored "
            f"as text or objects with .astype(float).{hint}"
        )
    if values.dtype == np.longdouble:
        return values.astype(np.float64)
    if not values.dtype.isnative or any(step < 0 for step in values.strides):
        values = values.astype(values.dtype.newbyteorder("="), order="C")
    return values if values.flags.writeable else values.copy()  # torch has no read-only tensors and would warn


def like(result: Tensor, reference: Any) -> Any:
    """Return `result` in the type of `reference`: a tensor for a tensor, else a numpy array."""
    reference = reference.values if isinstance(reference, Logits) else reference
    return result if isinstance(reference, Tensor) else result.cpu().numpy()


def _floating(values: Any, name: str, instead: str) -> Tensor:
    tensor = as_tensor(values, name)
    if tensor.numel() == 0:
        raise ValueError(
            f"{name} must have at least one row; got shape {tuple(tensor.shape)}. "
            "Check the filter or the split that produced it."
        )
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be floating point; got {dtype_name(tensor)}. {instead}")
    return tensor


def dtype_name(tensor: Tensor) -> str:
    """The dtype of a tensor for a message: "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def _widen(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALF else tensor


def _unit_interval(tensor: Tensor, name: str) -> Tensor:
    """Check 0 ≤ values ≤ 1 in one pass, and clip rounding errors."""
    low, high = (bound.item() for bound in torch.aminmax(tensor))
    if np.isnan(low) or np.isnan(high):
        raise ValueError(f"{name} must be numbers in [0, 1]; got NaN. Drop those rows or repair the model.")
    if low < -_RANGE_SLACK or high > 1 + _RANGE_SLACK:
        raise ValueError(
            f"{name} must lie in [0, 1]; got values from {low:.6g} to {high:.6g}. "
            "If these are logits, pass from_logits=True or Logits(...). Divide percentages by 100."
        )
    return tensor.clamp(0.0, 1.0) if low < 0 or high > 1 else tensor


def two_columns(values: Any, *, logits: bool) -> Any:
    """Two columns for one number per row, the logit or the probability of class 1 of two; other values as they are."""
    given = values.values if isinstance(values, Logits) else values
    score = as_tensor(given, "logits" if logits else "probs")
    if score.ndim != 1 or len(score) == 0 or not score.is_floating_point():
        return values
    return torch.stack([torch.zeros_like(score) if logits else 1 - score, score], dim=1)


def check_logits(logits: Any) -> Tensor:
    """Return (n, C) logits. They are finite, except for -inf, which rules out a class (never all classes of a row)."""
    values = logits.values if isinstance(logits, Logits) else logits
    tensor = _widen(_floating(values, "logits", "Cast them to float32 or float64 if they are scores."))
    if tensor.ndim != 2:
        raise ValueError(
            f"logits must have shape (n, C); got {tuple(tensor.shape)}. "
            "For one binary logit per row, stack zeros and the logit: np.stack([0 * z, z], axis=1)."
        )
    _check_logit_values(tensor)
    ruled_out = (tensor == -torch.inf).all(dim=1)
    if ruled_out.any():
        raise ValueError(
            "Each row of logits must have at least one finite value; got -inf for every class in row "
            f"{int(ruled_out.nonzero()[0])}."
        )
    if are_probs(tensor):
        warn(
            "These logits are probabilities: each row lies in [0, 1] and sums to 1. Leave out from_logits and "
            "Logits(...) for a metric, and pass from_probs=True to a calibrator."
        )
    return tensor


def are_probs(tensor: Tensor) -> bool:
    """Whether all rows are probabilities; a few rows, or rows of zeros and ones, can also be logits."""
    if len(tensor) < 10 or tensor.shape[1] < 2:
        return False
    low, high = (bound.item() for bound in torch.aminmax(tensor))
    if low < 0 or high > 1 or bool(((tensor == 0) | (tensor == 1)).all()):
        return False
    return bool(((tensor.sum(dim=1, dtype=torch.float64) - 1).abs() < _ROW_SUM_SLACK).all())


def _check_logit_values(tensor: Tensor) -> None:
    high = tensor.amax().item()
    if np.isnan(high):
        raise ValueError("logits must be finite; got NaN. Drop those rows or repair the model.")
    if high == np.inf:
        raise ValueError("logits must be finite, or -inf for a class that is ruled out; got +inf.")


def check_probs(probs: Any, *, from_logits: bool = False) -> Tensor:
    """Return (n, C) probabilities.

    With `from_logits=True` or `Logits(...)`, the values are logits, and the softmax is computed in float64.
    """
    if from_logits or isinstance(probs, Logits):
        return torch.softmax(check_logits(probs).double(), dim=1)
    raw = _floating(probs, "probs", "Hard predictions are not probabilities, and labels come second.")
    if raw.ndim != 2:
        hint = (
            "For binary problems with one probability per row, pass binary='positive' or binary='predicted' if the "
            "function has that argument, or stack the columns: np.stack([1 - p, p], axis=1)."
            if raw.ndim == 1
            else "Flatten the leading axes so that each row is one prediction."
        )
        raise ValueError(f"probs must have shape (n, C); got {tuple(raw.shape)}. {hint}")
    tensor = _unit_interval(_widen(raw), "probs")
    gap = (tensor.sum(dim=1, dtype=torch.float64) - 1).abs()
    worst = int(gap.argmax())
    if gap[worst] > (_ROW_SUM_SLACK_HALF if raw.dtype in _HALF else _ROW_SUM_SLACK):
        hint = (
            "For the probability of class 1 of two, pass a 1-D array: probs[:, 0]."
            if tensor.shape[1] == 1
            else "Pass from_logits=True if these are logits. If they are rounded, divide each row by its sum: "
            "probs / probs.sum(axis=1, keepdims=True)."
        )
        raise ValueError(
            f"Each row of probs must sum to 1; got {tensor[worst].double().sum().item():.6g} in row {worst}. {hint}"
        )
    return tensor


def check_confidence(confidence: Any, correct: Any) -> tuple[Tensor, Tensor]:
    """Return (confidence in [0, 1], correct as bool), both 1-D and equally long."""
    tensor = _widen(_floating(confidence, "confidence", "Cast it to float if these really are probabilities."))
    if tensor.ndim != 1:
        raise ValueError(
            f"confidence must be 1-D; got shape {tuple(tensor.shape)}. "
            "Give a matrix of class probabilities as probs, with labels."
        )
    tensor = _unit_interval(tensor, "confidence").contiguous()
    hits = as_tensor(correct, "correct")
    if hits.shape != tensor.shape:
        raise ValueError(f"correct must have the shape of confidence, {tuple(tensor.shape)}; got {tuple(hits.shape)}.")
    hits = hits.to(tensor.device)
    if hits.dtype == torch.bool:
        return tensor, hits
    as_bool = hits.bool()
    if not torch.equal(as_bool.to(hits.dtype), hits):
        low, high = hits.double().min().item(), hits.double().max().item()
        raise ValueError(
            f"correct must hold only True/False or 0/1; got values from {low:.6g} to {high:.6g}. "
            "It says whether each prediction was right. Pass class labels as labels, with probs."
        )
    return tensor, as_bool


def check_weights(sample_weight: Any, n_rows: int, device: torch.device | None = None) -> Tensor:
    """Return float64 weights: finite, not negative, not all zero, one per row."""
    tensor = as_tensor(sample_weight, "sample_weight")
    if tuple(tensor.shape) != (n_rows,):
        raise ValueError(f"sample_weight must be 1-D with {n_rows} entries; got shape {tuple(tensor.shape)}.")
    tensor = tensor.to(device=device, dtype=torch.float64)
    low, high = (bound.item() for bound in torch.aminmax(tensor))
    if not (low >= 0 and high < np.inf and high > 0):
        raise ValueError(
            f"sample_weight must be finite, not negative and not all zero; got values from {low:.6g} to {high:.6g}."
        )
    return tensor


def top_label(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the confidence of the predicted class and whether it was right, Eq. (1) of Sanguin et al. 2024.

    Ties go to the first class.
    """
    confidence, predicted = probs.max(dim=1)
    return confidence, predicted == labels

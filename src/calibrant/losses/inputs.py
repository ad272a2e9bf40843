"""Checks of the inputs of losses, with errors that say what is wrong.

Shapes and types are always checked. The range of labels is checked by the operations that use them as indices, so that
no check waits for a GPU or depends on data while a step is recorded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from calibrant.base.classes import loss_inputs


def batch_inputs(logits: Tensor, targets: Tensor, *, soft: bool = False) -> tuple[Tensor, Tensor]:
    """As :func:`calibrant.base.classes.loss_inputs`, for a loss of a whole batch, which needs at least one sample."""
    if logits.dim() != 2 or not logits.shape[0]:
        raise ValueError(
            "logits must have shape (samples, classes) with at least one sample for a loss of a whole batch; got "
            f"{tuple(logits.shape)}. Flatten further axes with logits.flatten(0, -2) and labels.flatten()."
        )
    return loss_inputs(logits, targets, soft=soft)


def indicators(labels: Tensor, like: Tensor) -> Tensor:
    """One-hot rows with the shape and type of the logits `like`."""
    with known_labels(like.shape[-1]):
        return like.new_zeros(like.shape).scatter(-1, labels.unsqueeze(-1), 1.0)


def class_shares(targets: Tensor, like: Tensor) -> Tensor:
    """Targets as class probabilities: one-hot rows for class indices, soft targets as they are."""
    return indicators(targets, like) if targets.dim() < like.dim() else targets


def correctness(logits: Tensor, labels: Tensor) -> Tensor:
    """1 if the class with the largest logit is the label, else 0, in the type of the logits; a constant."""
    return indicators(labels, logits).gather(-1, logits.argmax(-1, keepdim=True)).squeeze(-1)


@contextmanager
def known_labels(n_classes: int) -> Iterator[None]:
    """Turn the index error of a label that is not a class into one that names the label. On a GPU, torch reports it."""
    try:
        yield
    except (IndexError, RuntimeError) as error:
        if "out of bounds" not in str(error):
            raise
        wrong_index = re.search(r"-?\d+", str(error))
        raise ValueError(
            f"labels must be class indices from 0 to {n_classes - 1}, because the logits have {n_classes} columns; "
            f"got {wrong_index.group() if wrong_index else 'another one'}. Leave out samples without a label."
        ) from error


def for_each_sample(name: str, value: float | Tensor, labels: Tensor, *, largest: float = math.inf) -> float | Tensor:
    """A setting that is one number or one per sample; a tensor of another shape would be broadcast over samples.

    Only the values of numbers are checked: they must be finite and between 0 and `largest`.
    """
    if isinstance(value, Tensor):
        if value.shape == labels.shape:
            return value
        if value.numel() == 1:
            return value.reshape(())
        raise ValueError(
            f"{name} must be one number, or a tensor with one value per sample, of shape {tuple(labels.shape)}; "
            f"got shape {tuple(value.shape)}."
        )
    if not 0 <= value <= largest or value == math.inf:
        limits = "at least 0 and finite" if largest == math.inf else f"between 0 and {largest:g}"
        raise ValueError(f"{name} must be {limits}; got {value}.")
    return value


def positive_number(name: str, value: float | Tensor, *, zero: bool = False) -> float | Tensor:
    """A setting that is one positive number, or a tensor of one element, whose value is not checked."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} must be one number for all samples; got a tensor of shape {tuple(value.shape)}.")
        return value.reshape(())
    if not 0 <= value < math.inf or (value == 0 and not zero):
        raise ValueError(f"{name} must be {'at least 0' if zero else 'positive'} and finite; got {value}.")
    return value


def number_below_one(name: str, value: float | Tensor) -> float | Tensor:
    """A setting strictly between 0 and 1, or a tensor of one element, whose value is not checked."""
    if not isinstance(value, Tensor) and not 0 < value < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1; got {value}.")
    return positive_number(name, value)


def sample_weights(weights: Tensor, like: Tensor) -> Tensor:
    """One weight for each sample, with the shape and type of `like`. A negative weight becomes NaN, and so the loss."""
    if not isinstance(weights, Tensor) or weights.shape != like.shape:
        shown = f"shape {tuple(weights.shape)}" if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(
            f"sample_weight must be a tensor with one weight per sample, of shape {tuple(like.shape)}; got {shown}."
        )
    return torch.where(weights >= 0, weights.to(like.dtype), torch.nan)

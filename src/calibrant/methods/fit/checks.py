"""Checks of a user's network and data before training, so that mistakes become sentences."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.base.warning import warn
from calibrant.data.streams.batch import tensors_of
from calibrant.methods.core.samples import Samples
from calibrant.models.functional.global_state import generators_restored
from calibrant.models.functional.network import call, logits_of
from calibrant.models.functional.user_modules import copied

ROWS, FEWEST = 2000, 200
"""The most and the fewest rows on which a trained network is compared with chance."""


def count_classes(model: nn.Module, inputs: Mapping[str, Any], *, trained: bool = False) -> int:
    """The number of logits that the network returns for a few inputs of each part.

    A copy is called, so that the given network does not change. ``trained``: the network is calibrated only.
    """
    twin = copied(model).eval()
    with generators_restored(next(twin.parameters())):
        for name, few in inputs.items():
            logits = _few_logits(twin, few, name)
            if logits.dim() != 2 or logits.shape[1] < 2:
                raise ValueError(
                    "The model must return one row of logits per sample, (samples, classes), with at least two "
                    f"classes; got {tuple(logits.shape)} for two samples of {name}. For two classes, let the last "
                    "layer have two outputs."
                )
        again = _few_logits(twin, few, name)
    end = type(logits.grad_fn).__name__
    if trained and end.startswith("Softmax"):
        warn(
            "The network ends in a softmax, but calibration takes logits. Remove the softmax at its end, or "
            "use calibrant.posthoc.Temperature(from_probs=True) on its probabilities."
        )
    if end.startswith("Sigmoid"):
        warn(
            "The network ends in a sigmoid, but losses take logits, so confidences can hardly rise. Remove the sigmoid "
            "at the end of the network."
        )
    if not torch.allclose(logits, again, rtol=1e-3, atol=1e-5, equal_nan=True):
        warn(
            "The model gives different outputs for the same inputs in evaluation mode, so its probabilities are "
            "random. Switch dropout off in evaluation mode: F.dropout(x, p, training=self.training)."
        )
    return logits.shape[1]


def _few_logits(model: nn.Module, inputs: Any, name: str) -> Tensor:
    with processing(inputs, f"two samples of {name}"):
        return logits_of(call(model, inputs))


@contextlib.contextmanager
def processing(inputs: Any, what: str) -> Iterator[None]:
    """Turn errors of a network about its inputs into a sentence that shows their types and shapes."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, IndexError, KeyError, AttributeError) as error:
        tensors = tensors_of(inputs)
        shown = ", ".join(f"{str(t.dtype).removeprefix('torch.')} of shape {tuple(t.shape)}" for t in tensors)
        whole = any(not t.is_floating_point() for t in tensors)
        advice = " Integers are not converted; use .float() if they are not indices." if whole else ""
        raise ValueError(
            f"The model cannot process {what} ({shown}): {type(error).__name__}: {error}.{advice}"
        ) from error


def check_precision(model: nn.Module) -> None:
    """Raise an error if parameters have a precision in which small updates are lost."""
    half = [name for name, p in model.named_parameters() if p.requires_grad and p.dtype == torch.float16]
    if half:
        raise ValueError(
            f"Trainable parameters must be float32, float64 or bfloat16; got float16 for {half[0]!r}, in which small "
            "updates are lost. Convert the network: model.float()."
        )


def not_finite(part: Samples | None, name: str) -> str:
    """A sentence about the rows of a part in memory that are not finite; empty if there are none."""
    if part is None or part.loaded:
        return ""
    bad = torch.zeros(len(part), dtype=torch.bool, device=part.labels.device)
    for values in tensors_of(part.inputs):
        bad |= ~values.isfinite().reshape(len(values), -1).all(1)
    rows = bad.nonzero()[:, 0].tolist()
    return f" In {name}, {len(rows)} of {len(part)} inputs are not finite; the first is row {rows[0]}." if rows else ""


def warn_at_chance(predict: Callable[[Any], Tensor], part: Samples) -> None:
    """Warn if a trained network is not better than the frequencies of the classes, on up to 2,000 rows of a part.

    With fewer than 200 rows nothing is said. "Better" means a log-loss that is lower by more than its standard error.
    """
    probs, labels, count = [], [], 0
    for inputs, truth in part.pieces():
        probs.append(predict(inputs).cpu().double())
        labels.append(truth.cpu())
        count += len(truth)
        if count >= ROWS:
            break
    if count < FEWEST:
        return
    output, truth = torch.cat(probs)[:ROWS], torch.cat(labels)[:ROWS]
    frequencies = truth.bincount(minlength=output.shape[1]).double() / len(truth)
    losses, chance = (-p.clamp_min(1e-300).log() for p in (output[torch.arange(len(truth)), truth], frequencies[truth]))
    gains = chance - losses
    if float(gains.mean()) <= float(gains.std()) / len(gains) ** 0.5:
        warn(
            f"The network is at chance level: its log-loss is {float(losses.mean()):.4g}, and the frequencies of the "
            f"classes alone give {float(chance.mean()):.4g}. Look for labels that do not belong to the inputs and for "
            "inputs that are not scaled, or try another learning_rate or more epochs."
        )


def warn_about(train: Any, val: Any, part: Samples, n_classes: int) -> None:
    """Warn about data that lead to a poor or over-confident result."""
    present = len(part.labels.unique())
    if not part.loaded and present < n_classes:
        warn(
            f"The network has {n_classes} outputs, but only {present} of these classes occur in train. If the model "
            "returns several tensors, the logits must be the first or have the name 'logits'."
        )
    if val is not None and val is train:
        warn(
            "train and val are the same data. The temperature is then fitted to samples that the network was trained "
            "on, and the probabilities will be over-confident. Hold out some samples for val."
        )
    if part.loaded and len(part.labels) >= 8 and len(part.labels.unique()) == 1:
        warn(
            f"All {len(part.labels)} samples of the first training batch are of one class. If the data are sorted by "
            "class, shuffle them: DataLoader(…, shuffle=True)."
        )

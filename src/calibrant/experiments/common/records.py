"""From a named set to a training task, and from a trained classifier to one record of all that is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant import metrics
from calibrant._device import resolve_device as resolve_device  # for the experiments, which all import it from here
from calibrant.data import Problem, flip_labels, fresh, load
from calibrant.methods import Fitted, Part, Recalibrated, Task
from calibrant.selective import aurc

FRESH = 20_000
"""Further samples of each set on which calibration is measured against the exact posterior, the same for all."""
GRID = 80
"""Points along each side of the input map."""
FLOOR_DRAWS = 50
LEAST = 1e-12
"""No probability counts as less: one certain error would make the NLL of a whole method infinite, and its mean void."""

MEASURED = (
    "accuracy",
    "ece10",
    "ece15",
    "floor_posterior10",
    "floor_posterior15",
    "floor_self15",
    "true_ece",
    "mean_abs_confidence_truth",
    "confidence_minus_accuracy",
    "share_below_chance",
    "share_map_above_90",
    "nll",
    "brier",
    "smooth_ece",
    "aurc",
)
"""The measured fields of a record, in the order of the columns."""
WEIGHT_SHARES = ("misclassified_low_weight", "correct_high_weight", "misclassified_train")
"""What a record of a method with sample weights has besides."""


@dataclass(frozen=True)
class Prepared:
    """One set at one seed: the task, inputs standardised by its training part, and the test part."""

    problem: Problem
    task: Task
    mean: np.ndarray
    std: np.ndarray
    flipped: np.ndarray
    """Which training labels were changed."""

    @property
    def dataset(self) -> str:
        """The name of the set."""
        return self.problem.name

    @property
    def seed(self) -> int:
        """The seed of samples and networks."""
        return self.problem.seed

    def scale(self, inputs: np.ndarray) -> Tensor:
        """Inputs as the network takes them."""
        return torch.as_tensor((inputs - self.mean) / self.std, dtype=torch.float32)

    @cached_property
    def posterior(self) -> np.ndarray | None:
        """The exact posterior on the test part; None where labels have no noise, and it would score 0 by itself."""
        return None if self.problem.noise_free else self.problem.posterior(self.problem.test[0])

    @cached_property
    def floors(self) -> dict[str, Any]:
        """What the exact posterior scores on the test part by itself."""
        own, labels = self.posterior, self.problem.test[1]
        return {f"floor_posterior{b}": None if own is None else metrics.ece(own, labels, b) for b in (10, 15)}


@lru_cache(maxsize=512)
def prepare(name: str, seed: int, flip: float = 0.0) -> Prepared:
    """The set of this name with fresh samples for this seed; ``flip`` is the share of training labels to change.

    The last ones are kept: one population after the other asks for them.
    """
    problem = load(name, seed)
    (x, y), (x_val, y_val) = problem.train, problem.val
    flipped = np.zeros(len(y), dtype=bool)
    if flip:
        y, flipped = flip_labels(y, flip, problem.classes, seed=seed)
    mean, std = x.mean(0), x.std(0)

    def part(inputs: np.ndarray, labels: np.ndarray) -> Part:
        return Part(torch.as_tensor((inputs - mean) / std, dtype=torch.float32), torch.as_tensor(labels))

    task = Task(part(x, y), part(x_val, y_val), problem.classes, seed)
    return Prepared(problem, task, mean, std, flipped)


@cache
def shape_of(name: str) -> Any:
    """The shape of a set's tasks: networks of one shape may train as one population."""
    return prepare(name, 0).task.shape


@dataclass(frozen=True)
class Reference:
    """What all seeds and methods of a set are held against: many further samples, their truth, and an input map."""

    inputs: np.ndarray
    posterior: np.ndarray
    x: np.ndarray | None
    """Columns of the map, over the bounding box of a data set of the paper's size; None beyond two dimensions."""
    y: np.ndarray | None
    truth: Callable[[np.ndarray], np.ndarray]

    @property
    def grid(self) -> np.ndarray | None:
        """Points of the map, row by row."""
        if self.x is None or self.y is None:
            return None
        return np.stack(np.meshgrid(self.x, self.y), axis=-1).reshape(-1, 2)


@cache
def reference(name: str, samples: int = FRESH) -> Reference:
    """The reference of a set; its posterior is computed once."""
    data = fresh(name, samples, seed=0)
    x = y = None
    if data.inputs.shape[1] == 2:
        box = data.inputs[:2000]
        x, y = np.linspace(box.min(0), box.max(0), GRID).T
    return Reference(data.inputs, data.posterior(data.inputs), x, y, data.posterior)


class Predicted(NamedTuple):
    """Probabilities (n, C), the predicted class, and the confidence in it."""

    probs: np.ndarray
    classes: np.ndarray
    confidence: np.ndarray

    def rows(self, start: int, end: int) -> Predicted:
        """Those of some samples."""
        return Predicted(*(values[start:end] for values in self))


def predict(fitted: Fitted, inputs: Tensor) -> Predicted:
    """What a classifier says. Class and confidence are those of the largest probability, with one exception.

    Isotonic regression of the confidence keeps the network's class, and may leave it less than another class has
    (confidence below 1/C, the first paper's complaint). It is measured as published: that class, that confidence.
    """
    probs = fitted.probs(inputs).numpy()
    judged = probs
    if isinstance(fitted, Recalibrated) and fitted.calibrator.can_fall_below_chance:
        judged = fitted.model.probs(inputs).numpy()
    classes = judged.argmax(1)
    return Predicted(probs, classes, probs[np.arange(len(probs)), classes])


def misclassified(fitted: Fitted, part: Part) -> np.ndarray:
    """Which samples a classifier gets wrong."""
    return predict(fitted, part.inputs).classes != part.labels.numpy()


def weight_shares(fitted: Fitted, train: Part) -> dict[str, float | None]:
    """Fig. 3 in numbers: how many training samples that the model gets wrong have w < 0.5, how many others w > 0.5.

    None throughout for a failed training or one without weights, and for a share of no samples.
    """
    weights = fitted.extras.get("sample_weights")
    if fitted.failure or weights is None:
        return dict.fromkeys(WEIGHT_SHARES)
    w, wrong = weights.numpy(), misclassified(fitted, train)
    found = (w[wrong] < 0.5, w[~wrong] > 0.5, wrong)
    return {name: float(v.mean()) if len(v) else None for name, v in zip(WEIGHT_SHARES, found, strict=True)}


def measure(fitted: Fitted, prepared: Prepared, fresh: Reference | None = None) -> dict[str, Any]:
    """One record: `dataset`, `seed`, the fields of ``MEASURED``, and `failure`; its method and cost are the caller's.

    Fields that a set has no value for are None, as are all of them where training failed. ``fresh`` is the set's
    :func:`reference` where it is not given.
    """
    record: dict[str, Any] = {"dataset": prepared.dataset, "seed": prepared.seed}
    if fitted.failure:
        return record | dict.fromkeys(MEASURED) | {"failure": fitted.failure}
    x, labels = prepared.problem.test
    fresh = reference(prepared.dataset) if fresh is None else fresh
    asked = [x, fresh.inputs] if fresh.grid is None else [x, fresh.inputs, fresh.grid]
    found = predict(fitted, prepared.scale(np.concatenate(asked)))  # at once: a GPU would wait between the pieces
    known = len(x) + len(fresh.inputs)
    on_map = found.confidence[known:]
    values = on_sample(found.rows(0, len(x)), labels) | against_truth(found.rows(len(x), known), fresh.posterior)
    values |= prepared.floors | {"share_map_above_90": (on_map > 0.9).mean() if len(on_map) else None}
    return record | {name: _short(values[name]) for name in MEASURED} | {"failure": None}


def on_sample(found: Predicted, labels: np.ndarray, least: float = LEAST) -> dict[str, Any]:
    """The scores that need labels only; NLL after raising probabilities to ``least`` and dividing by their sum."""
    raised = found.probs.clip(least)
    correct = found.classes == labels
    pairs: dict[str, Any] = {"confidence": found.confidence, "correct": correct}
    return {
        "accuracy": correct.mean(),
        "ece10": metrics.ece(**pairs, bins=10),
        "ece15": metrics.ece(**pairs, bins=15),
        "floor_self15": metrics.noise_floor(confidence=found.confidence, n_resamples=FLOOR_DRAWS).mean,
        "confidence_minus_accuracy": found.confidence.mean() - correct.mean(),
        "share_below_chance": metrics.share_below_chance(confidence=found.confidence, n_classes=found.probs.shape[1]),
        "nll": metrics.nll(raised / raised.sum(1, keepdims=True), labels),
        "brier": metrics.brier(found.probs, labels),
        "smooth_ece": metrics.smooth_ece(**pairs),
        "aurc": aurc(found.confidence, correct),
    }


def against_truth(found: Predicted, posterior: np.ndarray) -> dict[str, float]:
    """Confidence against the exact probability that the predicted class is right."""
    truth = posterior[np.arange(len(posterior)), found.classes]
    return {
        "true_ece": metrics.true_ece(confidence=found.confidence, right=truth),
        "mean_abs_confidence_truth": float(np.abs(found.confidence - truth).mean()),
    }


def _short(value: Any) -> float | None:
    """Six significant digits: far below any noise here, and a third of the file."""
    return None if value is None else float(f"{float(value):.6g}")

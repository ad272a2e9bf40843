"""Make a training task from the name of a synthetic set, and one record from a trained classifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant import metrics
from calibrant.base.device import resolve_device as resolve_device  # studies import it from here
from calibrant.data.scaling import Scaling, fit_scaling
from calibrant.methods import Fitted, Recalibrated, Samples, Task
from calibrant.selective import aurc
from studies.sets import SyntheticProblem, flip_labels, fresh, load_problem

FRESH = 20_000
"""Number of extra samples per set for comparing confidence with the exact posterior; the same for all methods."""
GRID = 80
"""Points along each side of the confidence map."""
FLOOR_DRAWS = 50
LEAST = 1e-12
"""Lower limit of probabilities in the NLL; without it, one certain error would make the mean NLL infinite."""

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
"""Additional fields of methods with sample weights."""


@dataclass(frozen=True)
class Prepared:
    """One set at one seed: the training task and the test part. The training part standardises all inputs."""

    problem: SyntheticProblem
    task: Task
    scaling: Scaling
    flipped: np.ndarray
    """Mask of the training labels that were flipped."""

    @property
    def dataset(self) -> str:
        """The name of the set."""
        return self.problem.name

    @property
    def seed(self) -> int:
        """The seed of the samples and the networks."""
        return self.problem.seed

    def scale(self, inputs: np.ndarray) -> Tensor:
        """Standardise inputs for the network."""
        return self.scaling.apply(inputs)

    @cached_property
    def posterior(self) -> np.ndarray | None:
        """The exact posterior on the test part; None for labels without noise, where its calibration error is 0."""
        return None if self.problem.noise_free else self.problem.posterior(self.problem.test[0])

    @cached_property
    def floors(self) -> dict[str, Any]:
        """ECE of the exact posterior on the test part."""
        posterior, labels = self.posterior, self.problem.test[1]
        return {
            f"floor_posterior{b}": None if posterior is None else metrics.ece(posterior, labels, b) for b in (10, 15)
        }


@lru_cache(maxsize=512)
def prepare(name: str, seed: int, flip: float = 0.0) -> Prepared:
    """Draw the samples of a set for a seed; ``flip`` is the share of training labels to change.

    Recent results are cached, because several populations use the same samples.
    """
    problem = load_problem(name, seed)
    (x, y), (x_val, y_val) = problem.train, problem.val
    flipped = np.zeros(len(y), dtype=bool)
    if flip:
        y, flipped = flip_labels(y, flip, problem.n_classes, seed=seed)
    scaling = fit_scaling(x)
    train = Samples(scaling.apply(x), torch.as_tensor(y))
    val = Samples(scaling.apply(x_val), torch.as_tensor(y_val))
    return Prepared(problem, Task(train, val, problem.n_classes, seed), scaling, flipped)


@cache
def shape_of(name: str) -> Any:
    """The shape of a set's tasks. Tasks of one shape can train as one population."""
    return prepare(name, 0).task.shape


@dataclass(frozen=True)
class Reference:
    """The reference of a set for all seeds and methods: extra samples, their exact posterior, and a grid of inputs."""

    inputs: np.ndarray
    posterior: np.ndarray
    x: np.ndarray | None
    """Columns of the grid over the bounding box of 2,000 samples; None beyond two dimensions."""
    y: np.ndarray | None
    truth: Callable[[np.ndarray], np.ndarray]

    @property
    def grid(self) -> np.ndarray | None:
        """Points of the grid, row by row."""
        if self.x is None or self.y is None:
            return None
        return np.stack(np.meshgrid(self.x, self.y), axis=-1).reshape(-1, 2)


@cache
def reference(name: str, samples: int = FRESH) -> Reference:
    """The reference of a set, computed once."""
    data = fresh(name, samples, seed=0)
    x = y = None
    if data.inputs.shape[1] == 2:
        box = data.inputs[:2000]
        x, y = np.linspace(box.min(0), box.max(0), GRID).T
    return Reference(data.inputs, data.posterior(data.inputs), x, y, data.posterior)


class ClassifierOutput(NamedTuple):
    """Probabilities (n, C), predicted classes (n,) and confidences (n,) of a classifier."""

    probs: np.ndarray
    classes: np.ndarray
    confidence: np.ndarray

    def rows(self, start: int, end: int) -> ClassifierOutput:
        """The output for the samples from ``start`` to ``end``."""
        return ClassifierOutput(*(values[start:end] for values in self))


def output_of(probs: np.ndarray) -> ClassifierOutput:
    """The output of a classifier that predicts its most probable class."""
    return ClassifierOutput(probs, probs.argmax(1), probs.max(1))


def predict(fitted: Fitted, inputs: Tensor) -> ClassifierOutput:
    """Predict with a classifier. Class and confidence are those of the largest probability, with one exception.

    Isotonic regression of the confidence keeps the class of the network, even if another class has a larger
    probability after calibration. The confidence can then fall below 1/C, which the first paper criticises. We measure
    it as published: with the network's class and the calibrated confidence of that class.
    """
    probs = fitted.probs(inputs).numpy()
    judged = probs
    if isinstance(fitted, Recalibrated) and fitted.calibrator.can_fall_below_chance:
        judged = fitted.model.probs(inputs).numpy()
    classes = judged.argmax(1)
    return ClassifierOutput(probs, classes, probs[np.arange(len(probs)), classes])


def misclassified(fitted: Fitted, part: Samples) -> np.ndarray:
    """Mask of the samples that a classifier gets wrong."""
    return predict(fitted, part.inputs).classes != part.labels.numpy()


def weight_shares(fitted: Fitted, train: Samples) -> dict[str, float | None]:
    """Fig. 3 in numbers: the share of misclassified training samples with w < 0.5, and of correct ones with w > 0.5.

    All values are None if training failed or the method has no weights. A share of zero samples is None.
    """
    weights = fitted.extras.get("sample_weights")
    if fitted.failure or weights is None:
        return dict.fromkeys(WEIGHT_SHARES)
    w, wrong = weights.numpy(), misclassified(fitted, train)
    masks = (w[wrong] < 0.5, w[~wrong] > 0.5, wrong)
    return {name: float(v.mean()) if len(v) else None for name, v in zip(WEIGHT_SHARES, masks, strict=True)}


def measure(fitted: Fitted, prepared: Prepared, fresh: Reference | None = None) -> dict[str, Any]:
    """One record with `dataset`, `seed`, the fields of ``MEASURED``, and `failure`. The caller adds method and cost.

    A field is None if the set has no value for it, or if training failed. ``fresh`` defaults to the :func:`reference`
    of the set.
    """
    record: dict[str, Any] = {"dataset": prepared.dataset, "seed": prepared.seed}
    if fitted.failure:
        return record | dict.fromkeys(MEASURED) | {"failure": fitted.failure}
    x, labels = prepared.problem.test
    fresh = reference(prepared.dataset) if fresh is None else fresh
    asked = [x, fresh.inputs] if fresh.grid is None else [x, fresh.inputs, fresh.grid]
    output = predict(fitted, prepared.scale(np.concatenate(asked)))  # in one call, to keep a GPU busy
    end = len(x) + len(fresh.inputs)
    on_map = output.confidence[end:]
    values = on_sample(output.rows(0, len(x)), labels) | against_truth(output.rows(len(x), end), fresh.posterior)
    values |= prepared.floors | {"share_map_above_90": (on_map > 0.9).mean() if len(on_map) else None}
    return record | {name: short(values[name]) for name in MEASURED} | {"failure": None}


def on_sample(output: ClassifierOutput, labels: np.ndarray, least: float = LEAST) -> dict[str, Any]:
    """The scores that need only labels. For the NLL, probabilities are raised to ``least`` and renormalised."""
    raised = output.probs.clip(least)
    correct = output.classes == labels
    pairs: dict[str, Any] = {"confidence": output.confidence, "correct": correct}
    return {
        "accuracy": correct.mean(),
        "ece10": metrics.ece(**pairs, bins=10),
        "ece15": metrics.ece(**pairs, bins=15),
        "floor_self15": metrics.noise_floor(confidence=output.confidence, n_resamples=FLOOR_DRAWS).mean,
        "confidence_minus_accuracy": output.confidence.mean() - correct.mean(),
        "share_below_chance": metrics.share_below_chance(confidence=output.confidence, n_classes=output.probs.shape[1]),
        "nll": metrics.nll(raised / raised.sum(1, keepdims=True), labels),
        "brier": metrics.brier(output.probs, labels),
        "smooth_ece": metrics.smooth_ece(**pairs),
        "aurc": aurc(output.confidence, correct),
    }


def against_truth(output: ClassifierOutput, posterior: np.ndarray) -> dict[str, float]:
    """Compare confidence with the exact probability that the predicted class is right."""
    truth = posterior[np.arange(len(posterior)), output.classes]
    return {
        "true_ece": metrics.true_ece(confidence=output.confidence, right=truth),
        "mean_abs_confidence_truth": float(np.abs(output.confidence - truth).mean()),
    }


def short(value: Any) -> float | None:
    """Round to six significant digits: more than the noise allows, and a third of the file size."""
    return None if value is None else float(f"{float(value):.6g}")

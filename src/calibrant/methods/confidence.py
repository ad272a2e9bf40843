"""Confidence maps: learned together with a network, or fitted to the held-out logits of a trained one.

A confidence map for any trained network: fitted to held-out logits, or a temperature where that is as good. The inner
loss of a network does not depend on a map of its logits. The bilevel problem of the network and
:class:`calibrant.bilevel.LogitMap` is therefore solved in two steps: train the network, then fit the map to the logits
of the trained network on held-out samples. :class:`calibrant.methods.confidence.LearnedConfidence` moves both levels
during training instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

from calibrant.base.settings import check_choice
from calibrant.bilevel import Direct, Hypergradient, LogitMap
from calibrant.bilevel.problem.objectives import UserLoss
from calibrant.bilevel.variables.logits import BehindMap, describe
from calibrant.data.streams.streams import Augment
from calibrant.data.vision import Distort
from calibrant.losses.classification import brier, cross_entropy
from calibrant.methods.core.method import TrainedNetwork
from calibrant.methods.core.results import Fitted, Following, Recalibrated, held_out_logits
from calibrant.methods.core.samples import Samples
from calibrant.methods.core.task import Task
from calibrant.methods.image_networks import STRIDE, HeldOutTraining
from calibrant.models.functional.user_modules import copied
from calibrant.posthoc import make_calibrator
from calibrant.posthoc.registry import TYPES

HIDDEN = 16
FEWEST = 1000
"""The fewest held-out rows for a map. With fewer, a map is not better than a temperature."""
FOLDS = 5
LARGEST = 5_000_000
"""The most logits that a map is fitted to. Of larger held-out parts, random rows are used."""
SPREAD, CONSTANT_SPREAD = 0.1, 0.5
"""Standard deviations of the normal priors on the map's last layer and on its constant, −log T."""


@dataclass(frozen=True)
class Mapped(Following):
    """A trained network whose logits are transformed by a learned map."""

    model: Fitted
    map: LogitMap
    extras: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None

    def logits(self, inputs: Any) -> Tensor:
        with torch.no_grad():
            return self.map(self.model.logits(inputs))

    def probs(self, inputs: Any) -> Tensor:
        return self.logits(inputs).softmax(1)


class Choice(NamedTuple):
    """A map, and why it was chosen."""

    map: LogitMap
    gain: float | None
    """The mean log-loss of a temperature minus that of the map, cross-validated; None if they were not compared."""
    error: float | None
    """The standard error of ``gain``."""

    @property
    def extras(self) -> dict[str, Any]:
        """The choice in plain values, for ``extras`` of a result."""
        return {"kind": "map" if self.map.hidden else "temperature", "gain": self.gain, "error": self.error}


def choose_map(logits: Tensor, labels: Tensor, sample_weight: Tensor | None = None, *, hidden: int = HIDDEN) -> Choice:
    """A map if it is better than a temperature on rows that it was not fitted to, else a temperature.

    Both are fitted to four fifths of the rows and evaluated on the rest, for each of five folds. The map is chosen if
    the mean of the paired differences is above their standard error. With fewer than ``FEWEST`` rows, the choice is a
    temperature.

    Parameters
    ----------
    logits, labels : tensors of shape (n, C) and (n,)
        Held-out rows.
    sample_weight : tensor of shape (n,), optional
        Weights of the rows; their scale does not matter.
    hidden : int
        The width of the map's hidden layer; 0 always gives a temperature.
    """
    logits, labels, share = _prepared(logits, labels, sample_weight)
    if hidden == 0 or len(labels) < FEWEST:
        return Choice(fit_map(logits, labels, share, hidden=0), None, None)
    folds = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)) % FOLDS)
    gains = torch.empty_like(share)
    for k in range(FOLDS):
        held, rest = folds == k, folds != k
        maps = [fit_map(logits[rest], labels[rest], share[rest], hidden=width) for width in (0, hidden)]
        one, other = (F.cross_entropy(each(logits[held]), labels[held], reduction="none") for each in maps)
        gains[held] = one - other
    gain = float((share * gains).sum() / share.sum())
    error = float(((share / share.sum()) ** 2 @ (gains - gain) ** 2).sqrt())
    return Choice(fit_map(logits, labels, share, hidden=hidden if gain > error else 0), gain, error)


def fit_map(logits: Tensor, labels: Tensor, sample_weight: Tensor | None = None, *, hidden: int = HIDDEN) -> LogitMap:
    """The map with the lowest total log-loss under normal priors: N(0, 0.5²) for the constant, N(0, 0.1²) for each
    weight of the last layer and N(0, 1) for each of the first.

    With few rows, the prior keeps the last layer at zero, and the map is a temperature. With very few, the prior of the
    constant keeps that temperature near 1. ``hidden=0`` always gives a temperature.
    """
    logits, labels, share = _prepared(logits, labels, sample_weight)
    logit_map = LogitMap(hidden).double().requires_grad_(False)
    values = list(logit_map.parameters())
    best = minimize(
        _Penalised(logit_map, logits, labels, share),
        torch.cat([v.reshape(-1) for v in values]).numpy(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 100, "ftol": 1e-7},  # relative: far below the noise of a log-loss
    )
    pieces = torch.from_numpy(best.x).split([v.numel() for v in values])
    for value, piece in zip(values, pieces, strict=True):
        value.copy_(piece.view_as(value))
    return logit_map


class _Penalised:
    """The total log-loss of mapped logits plus the priors, and its gradient in the parameters of the map.

    The gradient is written out in numpy: with autograd, the small operations wait for threads on a machine with many
    cores.
    """

    def __init__(self, mapping: LogitMap, logits: Tensor, labels: Tensor, share: Tensor) -> None:
        self.described, self.hidden, self.bound = describe(logits).numpy(), mapping.hidden, math.log(mapping.largest)
        self.labels, self.share, self.rows = labels.numpy(), share.numpy(), np.arange(len(labels))
        self.logits = (logits - logits.amax(1, keepdim=True)).numpy()  # at most 0, so that no exponential overflows
        self.scaled = np.empty_like(self.logits)  # kept, because memory that is new at every call is slow

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        first, first_bias, second, constant = np.split(flat, np.cumsum([self.described.shape[1], 1, 1]) * self.hidden)
        first = first.reshape(self.hidden, self.described.shape[1])
        hidden = np.tanh(self.described @ first.T + first_bias)
        log_factor = hidden @ second + constant
        factor = np.exp(log_factor.clip(-self.bound, self.bound))
        exponentials = np.exp(np.multiply(self.logits, factor[:, None], out=self.scaled), out=self.scaled)
        total = exponentials.sum(1)
        chosen = self.logits[self.rows, self.labels]
        precision = 1 / SPREAD**2, 1 / CONSTANT_SPREAD**2
        squares = flat[: -self.hidden - 1] @ flat[: -self.hidden - 1]
        penalty = 0.5 * (squares + precision[0] * second @ second + precision[1] * constant @ constant)
        loss = self.share @ (np.log(total) - factor * chosen) + penalty
        # d loss / d log_factor of a row: factor · (Σ_c p_c z_c − z_y), and 0 where the factor is at its bound
        slope = self.share * factor * (np.einsum("nc,nc->n", exponentials, self.logits) / total - chosen)
        slope *= np.abs(log_factor) <= self.bound
        inner = slope[:, None] * second * (1 - hidden**2)
        gradients = (
            inner.T @ self.described + first,
            inner.sum(0) + first_bias,
            hidden.T @ slope + precision[0] * second,
            slope.sum() + precision[1] * constant,
        )
        return float(loss), np.concatenate([g.reshape(-1) for g in gradients])


MAPS = {"map": HIDDEN, "prior-temperature": 0}
"""Maps by name, with the width of the hidden layer: :func:`choose_map`, and always a temperature."""


def check_calibrator(name: str) -> None:
    """Raise an error if this is neither a map nor a calibrator of :mod:`calibrant.posthoc`."""
    check_choice("calibrator", name, (*MAPS, *TYPES))


def recalibrated(
    model: Fitted, logits: Tensor, labels: Tensor, sample_weight: Tensor | None, calibrator: str | int
) -> Fitted:
    """A trained model, calibrated on its held-out logits. A number is the width of a map's hidden layer."""
    hidden = calibrator if isinstance(calibrator, int) else MAPS.get(calibrator)
    if hidden is not None:
        choice = choose_map(logits, labels, sample_weight, hidden=hidden)
        return Mapped(model, choice.map, extras=model.extras | {"confidence": choice.extras})
    fitted = make_calibrator(str(calibrator)).fit(logits.numpy(), labels.numpy(), sample_weight)
    return Recalibrated(model, fitted, extras=model.extras)


def _prepared(logits: Tensor, labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Rows on the CPU in float64 with weights of mean one, at most ``LARGEST`` logits."""
    logits, labels = logits.cpu(), labels.cpu()
    share = torch.ones_like(labels, dtype=torch.float64) if weights is None else weights.cpu().double()
    share = share / share.mean()
    rows = max(1, LARGEST // logits.shape[1])
    if len(labels) > rows:
        kept = torch.from_numpy(np.random.default_rng(0).permutation(len(labels))[:rows])
        logits, labels, share = logits[kept], labels[kept], share[kept]
    return logits.double(), labels, share


FEW = 2000
"""With fewer held-out samples, the map of the training run is replaced by one fitted after training."""


@dataclass(frozen=True)
class LearnedConfidence(HeldOutTraining):
    """Cross-entropy training with a confidence map as outer variable (:class:`calibrant.bilevel.LogitMap`).

    The inner level trains the network. The outer level trains the map: every few steps it evaluates held-out samples
    with the current weights and lowers the NLL of the mapped logits. The inner loss does not depend on the map, so the
    direct gradient is the whole hypergradient. The map does not change the accuracy, because it keeps the order of the
    classes.

    A share of the held-out images is distorted (:class:`calibrant.data.vision.Distort`), so that the map learns what
    outputs look like for inputs that the network cannot classify well. Inputs that are not uint8 images are not
    changed.

    With fewer than 2,000 held-out samples, the map of the training run follows their noise. With ``outer_loss="nll"``
    and ``hidden`` above 0, it is then replaced by a temperature or a map with a strong prior, fitted to undistorted
    samples after training (:func:`calibrant.methods.confidence.choose_map`).

    Parameters
    ----------
    hidden : int
        Width of the map's hidden layer; 0: a single temperature.
    distorted : float
        The share of held-out images that are distorted.
    hypergradient : Hypergradient
        How the gradient of the map is computed. By default the direct gradient, every four training steps.
    outer_learning_rate : float
        Adam's learning rate for the map.
    outer_batch_size : int
        Held-out samples per outer step.
    outer_loss : {"nll", "brier"}
        Outer objective on held-out samples.
    start : float
        The share of the run after which the map is trained.
    """

    keeps_outer: ClassVar[bool] = True
    held_out_for: ClassVar[str] = "A confidence map"
    hidden: int = 16
    distorted: float = 0.05
    hypergradient: Hypergradient = field(default=Direct(STRIDE))
    outer_learning_rate: float = 0.01
    outer_batch_size: int = 512
    start: float = 0.3
    outer_loss: Literal["nll", "brier"] = "nll"

    def __post_init__(self) -> None:
        check_choice("outer_loss", self.outer_loss, ("nll", "brier"))
        super().__post_init__()
        if self.hidden < 0 or not 0 <= self.distorted <= 1:
            raise ValueError(
                f"hidden must be at least 0, and distorted between 0 and 1; got {self.hidden} and {self.distorted}."
            )

    def variable(self, model: nn.Module, task: Task) -> LogitMap:
        """φ, the confidence map."""
        return LogitMap(self.hidden, samples=task.need_meta(self.held_out_for).count(), seed=task.seed)

    def objective(self) -> UserLoss:
        return BehindMap(cross_entropy if self.outer_loss == "nll" else brier)

    def held_out_augment(self, held: Samples) -> Augment | None:
        inputs = held.inputs
        images = isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 and inputs.dim() == 4
        return Distort(share=self.distorted) if images and self.distorted > 0 else None

    def result(self, task: Task, outcomes: Sequence[TrainedNetwork]) -> Fitted:
        trained = super().result(task, outcomes)
        if trained.failure:
            return trained
        held = task.need_meta(self.held_out_for)
        if self.hidden and self.outer_loss == "nll" and held.count() < FEW:
            return recalibrated(trained, *held_out_logits(trained, held), self.hidden)
        (solution,) = trained.networks
        view = solution.problem.outer_view
        learned = view.export(solution.phi, {}, copied(view.module))
        return Mapped(trained, learned.cpu().double().requires_grad_(False), extras=trained.extras)

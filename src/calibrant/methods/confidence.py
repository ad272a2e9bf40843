"""Training of a network together with a learned map from its logits to calibrated logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from calibrant._settings import check_choice
from calibrant.bilevel import Adam, Bilevel, Direct, Hypergradient, LogitMap
from calibrant.bilevel.variables.logits import BehindMap
from calibrant.data.streams import Augment
from calibrant.data.vision import Distort
from calibrant.losses.classification import brier, cross_entropy
from calibrant.methods.adapter import Group, Outcome, Solving
from calibrant.methods.confidence_map import Mapped, mapped
from calibrant.methods.fitted import Fitted
from calibrant.methods.networks import STRIDE, NetworkTraining, check_meta
from calibrant.methods.part import Part
from calibrant.methods.task import Task

FEW = 2000
"""With fewer held-out samples, the map of the training run is replaced by one fitted after training."""


@dataclass(frozen=True)
class LearnedConfidence(NetworkTraining):
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
    samples after training (:func:`calibrant.methods.confidence_map.choose_map`).

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
    hidden: int = 16
    distorted: float = 0.05
    hypergradient: Hypergradient = field(default=Direct(STRIDE, "head"))
    outer_learning_rate: float = 0.01
    outer_batch_size: int = 512
    start: float = 0.3
    outer_loss: Literal["nll", "brier"] = "nll"

    def __post_init__(self) -> None:
        check_choice("outer_loss", self.outer_loss, ("nll", "brier"))
        check_meta(self.outer_learning_rate, self.outer_batch_size, self.start)
        if self.hidden < 0 or not 0 <= self.distorted <= 1:
            raise ValueError(
                f"hidden must be at least 0, and distorted between 0 and 1; got {self.hidden} and {self.distorted}."
            )

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        return self.pose(
            model, task, self.variable(task), outer_loss=BehindMap(cross_entropy if self.outer_loss == "nll" else brier)
        )

    def solving(self, group: Group) -> Solving:
        return self.solve_by(
            group,
            hypergradient=self.hypergradient,
            outer_optimizer=Adam(self.outer_learning_rate),
            settings={"start": self.start},
        )

    def variable(self, task: Task) -> LogitMap:
        """φ, the confidence map."""
        return LogitMap(self.hidden, samples=self.held_out(task).count(), seed=task.seed)

    def held_out(self, task: Task) -> Part:
        return task.need_meta("A confidence map")

    def held_out_batch(self) -> int:
        return self.outer_batch_size

    def held_out_augment(self, held: Part) -> Augment | None:
        inputs = held.inputs
        images = isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 and inputs.dim() == 4
        return Distort(share=self.distorted) if images and self.distorted > 0 else None

    def result(self, task: Task, outcomes: Sequence[Outcome]) -> Fitted:
        trained = super().result(task, outcomes)
        (solution,) = trained.networks
        if trained.failure:
            return trained
        if self.hidden and self.outer_loss == "nll" and self.held_out(task).count() < FEW:
            return mapped(trained, self.held_out(task), self.hidden)
        values = solution.problem.outer_view.unflatten(solution.phi)
        learned = self.variable(task)
        learned.load_state_dict({name: value.cpu() for name, value in values.items()})
        return Mapped(trained, learned.double().requires_grad_(False), extras=trained.extras)

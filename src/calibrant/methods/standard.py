"""Standard training, and the baselines that differ from it only in the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from calibrant.bilevel import Adam, Bilevel, EarlyStopping, History, Plain, composed
from calibrant.bilevel.problem.objectives import UserLoss
from calibrant.losses.classification import focal, smoothed_cross_entropy
from calibrant.methods.adapter import Group, Outcome, Solving
from calibrant.methods.base import Method
from calibrant.methods.task import Task, streams

CHECK_EVERY = 5
"""Steps between two evaluations of the validation loss."""


@dataclass(frozen=True)
class Standard(Method):
    """One network trained with one loss and Adam: "the standard training procedure" of the first paper.

    Parameters
    ----------
    hidden : tuple of int
        Units of the hidden layers, for the default network.
    activation : {"relu", "silu", "tanh"}
        Activation of the hidden units.
    epochs : int, optional
        Passes over the training data; None: 1,200 steps or 20 epochs, whichever is more.
    learning_rate : float
        Adam's learning rate.
    batch_size : int, optional
        Samples per step; None: all rows if there are at most 4,096, else 512.
    patience : int, optional
        Stop if the validation loss has not improved for this many steps, and restore the best state. With the full
        batch, a step is an epoch. With mini-batches or a loader, patience is at least five epochs. None: train to the
        end.
    best : bool
        Train to the end, and restore the state with the best validation loss, which is computed once per epoch.
    smoothing : float
        ε of label smoothing; 0: none.
    gamma : float
        γ of the focal loss; 0: cross-entropy.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"
    epochs: int | None = 1200
    learning_rate: float = 0.02
    batch_size: int | None = None
    patience: int | None = None
    smoothing: float = 0.0
    gamma: float = 0.0
    best: bool = False

    varying: ClassVar[frozenset[str]] = frozenset({"learning_rate", "epochs"})

    def __post_init__(self) -> None:
        if self.best and self.patience is not None:
            raise ValueError(f"patience must be None with best=True, which trains to the end; got {self.patience}.")
        if self.smoothing and self.gamma:
            raise ValueError(
                f"smoothing and gamma must not both be set; got smoothing={self.smoothing} and gamma={self.gamma}. "
                "Set one of them to 0."
            )

    def data(self, task: Task) -> dict[str, Any]:
        judged = self.best or self.patience is not None
        if judged:
            task.need_val("Early stopping (patience)" if self.patience else "The best state (best)")
        return streams(task, self.batch_size, val=judged)

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        return Bilevel(model, **self.data(task), inner_loss=self.inner_loss(), seed=task.seed)

    def solving(self, group: Group) -> Solving:
        return Solving(
            hypergradient=Plain(CHECK_EVERY),
            inner_optimizer=Adam(group.each("learning_rate")),
            steps=group.steps(),
            callbacks=self.stopping(group.problems[0].train.batches),
            history=History(),
        )

    def learned(self, outcome: Outcome) -> dict[str, Any]:
        return {"history": {"inner_loss": outcome.history.get("inner_loss")}}

    def inner_loss(self) -> UserLoss:
        """The training loss, with hooks for outer variables."""
        if self.smoothing:
            return composed(Smoothed(self.smoothing))
        return composed(Focal(self.gamma)) if self.gamma else composed()

    def stopping(self, per_epoch: int) -> list[EarlyStopping]:
        """Callbacks that restore the state with the best validation loss. An epoch has ``per_epoch`` steps."""
        if self.best:
            return [EarlyStopping(patience=None, every=max(1, per_epoch // CHECK_EVERY))]
        if self.patience is None:
            return []
        steps = self.patience if per_epoch == 1 else max(self.patience, 5 * per_epoch)
        return [EarlyStopping(patience=-(-steps // CHECK_EVERY))]


@dataclass(frozen=True)
class Smoothed:
    """Cross-entropy with smoothed labels for a fixed ε."""

    epsilon: float

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return smoothed_cross_entropy(logits, targets, epsilon=self.epsilon)


@dataclass(frozen=True)
class Focal:
    """The focal loss for a fixed γ."""

    gamma: float

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return focal(logits, targets, gamma=self.gamma)

"""Standard training, and methods built from it: several networks, a calibrator after training, and cross-fitting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from calibrant.bilevel import Adam, Bilevel, Callback, EarlyStopping, History, Plain, composed
from calibrant.bilevel.problem.objectives import UserLoss
from calibrant.data.streams.streams import mix
from calibrant.losses.classification import focal, smoothed_cross_entropy
from calibrant.methods.core.method import Compile, Method, SolveSettings, TrainedNetwork, TrainingGroup
from calibrant.methods.core.results import Fitted, Mixture, Recalibrated, held_out_logits
from calibrant.methods.core.task import Task, streams
from calibrant.methods.crossfit.crossfit import CrossFit, calibrated_mean, fold_tasks
from calibrant.methods.crossfit.folds import folds_of, grouped
from calibrant.posthoc import make_calibrator
from calibrant.posthoc.registry import check_calibrator

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

    def solving(self, group: TrainingGroup) -> SolveSettings:
        return SolveSettings(
            hypergradient=Plain(CHECK_EVERY),
            inner_optimizer=Adam(group.each("learning_rate")),
            steps=group.steps(),
            callbacks=self.stopping(group.problems[0].train.batches),
            history=History(),
        )

    def learned(self, outcome: TrainedNetwork) -> dict[str, Any]:
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


_STANDARD = Standard()
STOPPED = Standard(patience=200)
"""Standard training that restores the state with the best validation loss: the base of the stopped baselines."""


@dataclass(frozen=True)
class Ensemble(Method):
    """The mean of several networks with different initial parameters (Lakshminarayanan et al. 2017).

    ``base`` is any method that trains one network.
    """

    base: Method = STOPPED
    members: int = 5

    def rows_at_once(self, task: Task) -> int:
        return self.members * self.base.rows_at_once(task)

    @classmethod
    def fit_group(
        cls,
        methods: Sequence[Ensemble],
        tasks: Sequence[Task],
        callbacks: Sequence[Callback] = (),
        compile: Compile = "auto",
    ) -> list[Fitted]:
        first = methods[0]
        again = [task.again(mix(task.seed, k) % 2**31) for task in tasks for k in range(first.members)]
        every = first.base.fit_group([first.base] * len(again), again, callbacks, compile)
        groups = [every[k : k + first.members] for k in range(0, len(every), first.members)]
        return [
            Mixture(
                begun([net for member in group for net in member.networks]),
                failure=next((m.failure for m in group if m.failure), None),
            )
            for group in groups
        ]


def begun(networks: Sequence[Any]) -> tuple[Any, ...]:
    """The networks whose training started. After an interrupt, the later networks are untrained."""
    return tuple(net for net in networks if net.outer_steps) or tuple(networks)


@dataclass(frozen=True)
class Calibrated(Method):
    """Train with ``base``, which can be any method, then fit a calibrator on the validation part."""

    calibrator: str
    base: Method = _STANDARD

    def __post_init__(self) -> None:
        check_calibrator(self.calibrator, "calibrator")

    def rows_at_once(self, task: Task) -> int:
        return self.base.rows_at_once(task)

    @classmethod
    def fit_group(
        cls,
        methods: Sequence[Calibrated],
        tasks: Sequence[Task],
        callbacks: Sequence[Callback] = (),
        compile: Compile = "auto",
    ) -> list[Fitted]:
        for method, task in zip(methods, tasks, strict=True):
            method.need_val(task)
        trained = methods[0].base.fit_group([m.base for m in methods], tasks, callbacks, compile)
        return [method.calibrate(model, task) for method, model, task in zip(methods, trained, tasks, strict=True)]

    def need_val(self, task: Task) -> None:
        """Raise an error before training if the task has no validation part."""
        task.need_val(f"The calibrator {self.calibrator!r}")

    def calibrate(self, model: Fitted, task: Task) -> Fitted:
        """Fit the calibrator to an already trained model."""
        self.need_val(task)
        assert task.val is not None
        if model.failure:
            return model
        scores, labels, weights = held_out_logits(model, task.val)
        calibrator = make_calibrator(self.calibrator).fit(scores.numpy(), labels.numpy(), weights)
        return Recalibrated(model, calibrator, extras=model.extras)


_PLAIN = Standard(epochs=None, learning_rate=0.001, batch_size=128, patience=200)


@dataclass(frozen=True)
class CrossFitted(Method):
    """The mean of networks that ``base`` trains, each without one of K folds, calibrated on held-out labels.

    The training and validation parts are pooled. Each network is trained without its fold. With the default base, it is
    restored to the state with the lowest loss on that fold. The classifier is that of :class:`SelfCalibrated`:
    ``(1 − λ)·softmax(mean_k z_k(x)/T + b) + λ/C``. T, b and λ are fitted to held-out logits: those of the networks that
    were not trained on a sample. There are no outer variables, so the cost is K plain trainings, for any model.

    Parameters
    ----------
    base : Method
        Any method that trains one network with a training and a validation part.
    folds : int
        K, the number of folds.
    repeats : int
        How often new folds are drawn; ``folds·repeats`` networks are trained.
    """

    base: Method = _PLAIN
    folds: int = 5
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2; got {self.folds}.")
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1; got {self.repeats}.")

    def rows_at_once(self, task: Task) -> int:
        return self.folds * self.repeats * self.base.rows_at_once(task)

    @classmethod
    def fit_group(
        cls,
        methods: Sequence[CrossFitted],
        tasks: Sequence[Task],
        callbacks: Sequence[Callback] = (),
        compile: Compile = "auto",
    ) -> list[Fitted]:
        first, tasks = methods[0], [grouped(task.read()) for task in tasks]
        parts = []
        for task in tasks:
            pooled = task.train if task.val is None else task.train + task.val
            parts.append(fold_tasks(task, pooled, folds_of(task, pooled, first.folds, first.repeats)))
        flat = [fold_task for dealt in parts for fold_task in dealt]
        networks = iter(first.base.fit_group([first.base] * len(flat), flat, callbacks, compile))
        result: list[Fitted] = []
        for task, task_parts in zip(tasks, parts, strict=True):
            heads = [head for _ in task_parts for head in next(networks).networks]
            pairs = [(head, t.fold) for head, t in zip(heads, task_parts, strict=True) if t.fold is not None]
            begun = [pair for pair in pairs if pair[0].outer_steps] or pairs  # untrained after an interrupt
            kept, dealt = zip(*begun, strict=True)
            fit = CrossFit(tuple(kept), tuple(dealt), task_parts[0].pooled or task.train)
            result.append(calibrated_mean(fit, "plain", len(task.train)))
        return result

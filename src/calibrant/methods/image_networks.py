"""Training of image networks and other large modules by SGD with a recipe, plain or with variables from held-out data.

The second paper's methods are built on it, and so is one learned weight per training sample, for many wrong labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from calibrant import bilevel
from calibrant.base.settings import check_choice
from calibrant.bilevel.problem.objectives import DEFAULT_OUTER_LOSS, UserLoss
from calibrant.bilevel.running.run import Run
from calibrant.data.streams.streams import Augment, mix
from calibrant.data.vision import Mixup
from calibrant.losses import Loss
from calibrant.losses.classification import cross_entropy
from calibrant.methods.averaged import mean_on
from calibrant.methods.core.method import Method, SolveSettings, TrainedNetwork, TrainingGroup
from calibrant.methods.core.results import weights_at
from calibrant.methods.core.samples import Samples, few_inputs
from calibrant.methods.core.task import Task
from calibrant.models.functional.global_state import generators_restored
from calibrant.models.functional.heads import find_head
from calibrant.models.functional.network import call, logits_of
from calibrant.models.functional.user_modules import copied

STRIDE = 4
"""Training steps per outer step."""
PLAIN = bilevel.Plain(STRIDE)


@dataclass(frozen=True)
class Recipe:
    """How to train a network, for any loss.

    Parameters
    ----------
    epochs, batch_size : int
        Passes over the training part, and samples per step; a smaller last batch is dropped.
    learning_rate, momentum, nesterov, weight_decay : float, float, bool and float
        Settings of SGD.
    schedule : {"one-cycle", "steps"}
        "one-cycle" (Smith 2018), or "steps": divide the rate by ten at each of ``milestones``.
    warmup : float
        Share of a one-cycle run in which the rate rises.
    milestones : tuple of int
        The epochs at which "steps" lowers the rate.
    select : {"last", "error", "nll"}
        "last" returns the last state. "error" and "nll" return the state with the lowest error or NLL on the validation
        part, which is evaluated after each epoch.
    average : float, optional
        Decay of a moving average of the weights, updated every four steps in the second half of the run. The average is
        then the result. None: no average.
    eager : bool
        On a GPU, keep the precision of the parameters and do not compile: slower, but works for every module.
    """

    epochs: int = 30
    batch_size: int = 256
    learning_rate: float = 0.2
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    schedule: Literal["one-cycle", "steps"] = "one-cycle"
    warmup: float = 0.2
    milestones: tuple[int, ...] = (150, 250)
    select: Literal["last", "error", "nll"] = "last"
    average: float | None = None
    eager: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        for name, choices in (("schedule", ("one-cycle", "steps")), ("select", ("last", "error", "nll"))):
            check_choice(name, getattr(self, name), choices)
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if not self.learning_rate > 0 or not 0 <= self.warmup <= 1:
            raise ValueError(
                "learning_rate must be positive, and warmup between 0 and 1; "
                f"got {self.learning_rate} and {self.warmup}."
            )

    def optimizer(self, steps: int) -> bilevel.Optimizer:
        """SGD with the schedule for a run of ``steps`` steps."""
        per_epoch = max(1, steps // self.epochs)
        if self.schedule == "one-cycle":
            rate = bilevel.one_cycle(self.learning_rate, steps, warmup=self.warmup)
        else:
            rate = bilevel.multistep(self.learning_rate, [m * per_epoch for m in self.milestones])
        return bilevel.SGD(rate, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay)

    def callbacks(self, steps: int, task: Task, stride: int = STRIDE, outer: bool = False) -> list[bilevel.Callback]:
        """Callbacks for the moving average and for the choice of the best state.

        ``steps`` is the length of the run, and ``stride`` the number of training steps per outer step. With ``outer``,
        φ is averaged together with the weights.
        """
        callbacks: list[bilevel.Callback] = []
        if self.average is not None:
            callbacks.append(bilevel.MovingAverage(self.average, every=max(1, STRIDE // stride), outer=outer))
        if self.select != "last":
            every = max(1, steps // self.epochs // stride)
            part = task.need_val("The choice of the best state")
            function = error if self.select == "error" else cross_entropy

            def criterion(run: Run) -> Tensor:
                return mean_on(run, run.state, part, function)

            callbacks.append(bilevel.EarlyStopping(criterion, patience=None, every=every))
        return callbacks


RECIPES = {
    "short": Recipe(),
    "paper": Recipe(epochs=350, batch_size=128, learning_rate=0.1, nesterov=False, schedule="steps", select="error"),
}
"""``paper`` is the second paper's recipe; ``short`` takes a tenth of the time and loses a point or two of accuracy."""


def error(logits: Tensor, labels: Tensor) -> Tensor:
    """1 for each wrong prediction, 0 for each right one."""
    return (logits.argmax(-1) != labels).double()


@dataclass(frozen=True)
class NetworkTraining(Method):
    """A network trained by SGD with one loss: cross-entropy, or any baseline that differs only in the loss.

    On a GPU, training uses bfloat16, the channels-last format and compilation.

    Parameters
    ----------
    recipe : Recipe
        Epochs, optimiser, schedule, and which state is returned.
    loss : Loss, optional
        One of :data:`calibrant.losses.LOSSES`; None: cross-entropy.
    mixup : float, optional
        α of mixup (Zhang et al. 2018).
    """

    one_by_one: ClassVar[bool] = True
    keeps_outer: ClassVar[bool] = False
    """Whether φ is part of the trained network, so that a moving average includes it."""
    recipe: Recipe = field(default_factory=Recipe)
    loss: Loss | None = None
    mixup: float | None = None

    def problem(self, model: nn.Module, task: Task) -> bilevel.Bilevel:
        """The problem on a task's data, in the precision for its device."""
        part, mixed = task.train, None
        if self.mixup is not None:
            if part.loaded:
                raise ValueError(
                    "mixup needs tensors; got a loader. Pass (inputs, labels), or mix samples in the loader."
                )
            mixed = Mixup(self.mixup, task.n_classes)
        train = task.level("train", _at_most(self.recipe.batch_size, part), augment_batch=mixed, drop_last=True)
        fast = next(model.parameters()).is_cuda and not self.recipe.eager
        precision: dict[str, Any] = {"autocast": torch.bfloat16, "channels_last": True} if fast else {}
        settings = {**self.outer_level(model, task), **precision, "head": task.head, "seed": task.seed}
        return bilevel.Bilevel(model, train=train, inner_loss=self.inner_loss(), **settings)

    def inner_loss(self) -> UserLoss:
        """The training loss, with hooks for outer variables."""
        return bilevel.composed(self.loss or cross_entropy)

    def outer_level(self, model: nn.Module, task: Task) -> dict[str, Any]:
        """``outer``, ``val`` and ``outer_loss`` of the problem; nothing for plain training."""
        return {}

    def solving(self, group: TrainingGroup, hypergradient: bilevel.Hypergradient = PLAIN) -> SolveSettings:
        """The recipe's optimiser, schedule and callbacks."""
        problem = group.problems[0]
        steps = self.recipe.epochs * problem.train.batches
        return SolveSettings(
            hypergradient=hypergradient,
            inner_optimizer=self.recipe.optimizer(steps),
            steps=[steps] * len(group.problems),
            callbacks=self.recipe.callbacks(steps, group.tasks[0], hypergradient.steps, self.keeps_outer),
            compile="inductor" if problem.start.is_cuda and not self.recipe.eager else "graphs",
        )


class HeldOutTraining(NetworkTraining):
    """Training with outer variables that held-out samples move: the base of the methods with an outer level.

    A method is a dataclass with the fields below, and defines ``variable``. The held-out samples are ``task.meta``, or
    the validation part if there is none.
    """

    hypergradient: bilevel.Hypergradient
    """How dF/dφ is computed."""
    outer_learning_rate: float
    """Adam's learning rate for φ."""
    outer_batch_size: int
    """Held-out samples per outer step."""
    start: float
    """The share of the run after which φ is updated."""
    held_out_for: ClassVar[str]
    """What needs the held-out samples, for the error if there are none."""

    def __post_init__(self) -> None:
        if not self.outer_learning_rate > 0 or self.outer_batch_size < 1 or not 0 <= self.start < 1:
            raise ValueError(
                "outer_learning_rate must be positive, outer_batch_size at least 1, and start at least 0 and below 1; "
                f"got {self.outer_learning_rate}, {self.outer_batch_size} and {self.start}."
            )

    def variable(self, model: nn.Module, task: Task) -> bilevel.OuterVariable:
        """φ, the outer variables."""
        raise NotImplementedError(f"{type(self).__name__} must define variable(model, task); got none.")

    def objective(self) -> UserLoss:
        """The objective on held-out samples."""
        return DEFAULT_OUTER_LOSS

    def outer_optimizer(self) -> bilevel.Optimizer:
        """The optimiser of φ."""
        return bilevel.Adam(self.outer_learning_rate)

    def held_out_augment(self, held: Samples) -> Augment | None:
        """The augmentation of held-out inputs; None by default."""
        return None

    def outer_level(self, model: nn.Module, task: Task) -> dict[str, Any]:
        held = task.need_meta(self.held_out_for)
        val = replace(held, augment=self.held_out_augment(held)).stream(
            batch_size=_at_most(self.outer_batch_size, held), seed=mix(task.seed, 11), augment=True, drop_last=True
        )
        return {"outer": self.variable(model, task), "val": val, "outer_loss": self.objective()}

    def solving(self, group: TrainingGroup, hypergradient: bilevel.Hypergradient | None = None) -> SolveSettings:
        settings = super().solving(group, hypergradient or self.hypergradient)
        return replace(settings, outer_optimizer=self.outer_optimizer(), settings={"start": self.start})


def _at_most(size: int, part: Samples) -> int | None:
    """Samples per batch, at most all of them. A loader has batches of its own, and its length may be unknown."""
    return None if part.loaded else min(size, len(part))


def head_and_width(model: nn.Module, task: Task) -> tuple[str, int]:
    """The name of the model's head, and its number of input features.

    Features with further dimensions count as one vector. γ-Net needs one row per sample, so it refuses such features,
    because their width is not this number.
    """
    inputs = few_inputs(task.train)
    twin = copied(model).eval()  # frozen layers of the model stay in evaluation mode
    with torch.no_grad(), generators_restored(next(twin.parameters())):
        parts = find_head(twin, inputs, task.head)
        width = logits_of(call(parts.body, inputs)).flatten(1).shape[1]
    return parts.name, width


SOLVED_HEAD = bilevel.Implicit(STRIDE, "head")
NEXT_STEP = bilevel.OneStep(1, "head", learning_rate=1.0)


@dataclass(frozen=True)
class Reweighting(HeldOutTraining):
    """Cross-entropy with one weight per training sample, learned while the network is trained.

    ::

        inner   mean_i w_i·CE(f(x_i, θ), y_i)          labels y_i that may be wrong
        outer   mean_j CE(f(x_j, θ(w)), y_j)           clean labels

    A sample keeps its weight if its gradient agrees with that of the clean samples, and loses it if the gradient points
    the other way. The weights are kept between epochs, so that what they learned before the network memorised its
    labels is not lost. In the outer problem, only the last layer depends on w. An outer step therefore costs little
    more than a forward pass of the clean batch.

    ``hypergradient=SOLVED_HEAD`` treats that layer as solved to optimality on the features of recent batches (influence
    functions, Koh & Liang 2017). ``NEXT_STEP`` differentiates through one step of gradient descent before every
    training step, similar to "learning to reweight" (Ren et al. 2018), which discards its weights after each step.

    Parameters
    ----------
    hypergradient : Hypergradient
        How dF/dw is computed.
    outer_learning_rate : float
        Adam's learning rate for the weights. A sample takes part in one or two outer steps per epoch, which change its
        weight by about ten times this rate.
    outer_batch_size : int
        Clean samples per outer step.
    start : float
        The share of the run after which weights are updated. Earlier, the head carries little information about single
        samples.
    """

    hypergradient: bilevel.Hypergradient = SOLVED_HEAD
    outer_learning_rate: float = 0.05
    outer_batch_size: int = 256
    start: float = 0.1

    held_out_for: ClassVar[str] = "A weight for each sample"

    def variable(self, model: nn.Module, task: Task) -> bilevel.SampleWeights:
        return bilevel.SampleWeights(len(task.train))

    def learned(self, outcome: TrainedNetwork) -> dict[str, Any]:
        return super().learned(outcome) | {"sample_weights": weights_at(outcome.solution.phi, outcome.solution)}

"""One network with averaged weights: the default if training several networks would take too long."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.base.settings import check_choice
from calibrant.base.warning import warn
from calibrant.bilevel import Adam, Bilevel, Callback, Optimizer, Plain, composed, cosine, one_cycle
from calibrant.bilevel.gradients.dynamics import State, named
from calibrant.bilevel.running.finite import NonFiniteError
from calibrant.bilevel.running.run import Run
from calibrant.methods.core.method import Method, SolveSettings, TrainingGroup
from calibrant.methods.core.results import Fitted
from calibrant.methods.core.samples import Samples
from calibrant.methods.core.task import Task, streams, total_steps
from calibrant.models.functional.user_modules import leading_parameter

STRIDE = 5
"""Training steps between two updates of the average."""
DECAY = 0.95
PATIENCE = 0.3
"""Training stops if the average has not improved for this share of the run."""
LOOKS = 20
"""The most evaluations of the validation part in a run."""
Precision = Literal["auto", "float32"]
Shape = Literal["one-cycle", "cosine", "constant"]
UserSchedule = Shape | Callable[[float], float]


@dataclass(frozen=True)
class AveragedNetwork(Method):
    """One network, whose result is a moving average of its weights.

    With a validation part, the average is evaluated after every epoch, but at most 20 times in a run, and the one with
    the lowest NLL is kept.

    Parameters
    ----------
    epochs : int, optional
        Passes over the training data; None: ``steps`` steps or ``passes`` epochs, whichever is more.
    learning_rate : float, optional
        The largest rate of the schedule; None: that of ``optimizer``.
    batch_size : int, optional
        Samples per step for data in memory; a loader uses its own batch size.
    steps, passes : int
        The length of training if ``epochs`` is None.
    optimizer : Optimizer
        The optimiser with its largest learning rate. If its rate is a function of the step, ``schedule`` is not used.
    schedule : {"one-cycle", "cosine", "constant"} or callable
        The learning rate in the course of the run. A function gets the share of the run that is over, from 0 to 1, and
        returns a factor of the learning rate.
    warmup : float
        The share of a one-cycle run in which the rate rises.
    loss : callable ``(logits, labels) -> losses``, optional
        The training loss, with one value per sample; None: cross-entropy. A ``torch.nn.CrossEntropyLoss`` may have
        class weights and label smoothing.
    precision : {"auto", "float32"}
        "auto" trains in bfloat16 and the channels-last format on a GPU that has bfloat16; if the network fails with
        these, a warning says so and it is trained without them.
    patience : float, optional
        Training stops if the NLL has not improved for this share of the run. None: it runs to the end.
    restarts : int
        If training diverges, it is repeated at half the learning rate, at most this many times, with a warning.
    kind : str
        The kind of network that the settings are for; see :mod:`calibrant.methods.recipes`.
    """

    one_by_one: ClassVar[bool] = True
    epochs: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = 128
    steps: int = 1200
    passes: int = 20
    optimizer: Optimizer = field(default=Adam(0.003), kw_only=True)
    schedule: UserSchedule = field(default="one-cycle", kw_only=True)
    warmup: float = field(default=0.2, kw_only=True)
    loss: Any = field(default=None, kw_only=True)
    precision: Precision = field(default="float32", kw_only=True)
    patience: float | None = field(default=PATIENCE, kw_only=True)
    restarts: int = field(default=0, kw_only=True)
    kind: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive; got {self.learning_rate}.")
        if not callable(self.schedule):
            check_choice("schedule", self.schedule, get_args(Shape))
        check_choice("precision", self.precision, get_args(Precision))

    @property
    def rate(self) -> float:
        """The largest learning rate; NaN if the optimiser's rate is a function of the step."""
        rate = self.optimizer.learning_rate if self.learning_rate is None else self.learning_rate
        return math.nan if callable(rate) else float(rate)

    @property
    def story(self) -> str:
        """The settings in a few words, such as "SGD, one cycle up to 0.1"."""
        course = "a schedule of its own" if callable(self.schedule) or math.isnan(self.rate) else self.schedule
        description = f"{type(self.optimizer).__name__}, {course.replace('-', ' ')}"
        limit = "up to" if course == "one-cycle" else "from"
        return description if math.isnan(self.rate) else f"{description} {limit} {self.rate:g}"

    def uses_bfloat16(self, model: nn.Module) -> bool:
        """Whether a network is trained in bfloat16, if it allows that."""
        first = leading_parameter(model)
        fast = self.precision == "auto" and first.is_cuda and first.dtype == torch.float32
        return fast and torch.cuda.is_bf16_supported()

    def data(self, task: Task) -> dict[str, Any]:
        return streams(task, self.batch_size, val=False)

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        inner = composed() if self.loss is None else composed(per_sample(self.loss))

        def posed(**precision: Any) -> Bilevel:
            return Bilevel(model, **self.data(task), inner_loss=inner, seed=task.seed, **precision)

        if self.uses_bfloat16(model):
            for lost, settings in (("", {"channels_last": True}), ("the channels-last format", {})):
                with contextlib.suppress(RuntimeError, TypeError, ValueError):
                    bfloat16_problem = posed(autocast=torch.bfloat16, **settings)
                    if lost:
                        _tell_lost(lost)
                    return bfloat16_problem
            _tell_lost("bfloat16 and the channels-last format")
        return posed()

    def solving(self, group: TrainingGroup) -> SolveSettings:
        batches = group.problems[0].train.batches
        steps = max(2, total_steps(batches, self.epochs, self.steps, self.passes))
        every = max(1, batches // STRIDE, -(-steps // (STRIDE * LOOKS)))
        callbacks: list[Callback] = [BestAverage(group.tasks[0].val, every=every, patience=self.patience)]
        if self.restarts:
            callbacks.append(Divergence(group.tasks[0].n_classes, every=max(1, batches // (4 * STRIDE))))
        return SolveSettings(
            hypergradient=Plain(STRIDE),
            inner_optimizer=self.scheduled(steps),
            steps=[steps],
            callbacks=callbacks,
            compile="graphs",
        )

    def scheduled(self, steps: int) -> Optimizer:
        """The optimiser with its schedule for a run of ``steps`` steps."""
        schedule, rate = self.schedule, self.rate
        if math.isnan(rate):
            return self.optimizer
        if callable(schedule):
            factor = schedule
            return replace(self.optimizer, learning_rate=lambda step: rate * factor(min(1.0, (step - 1) / (steps - 1))))
        courses: dict[Shape, Any] = {"cosine": cosine(rate, steps), "constant": rate}
        courses["one-cycle"] = one_cycle(rate, steps, warmup=self.warmup)
        return replace(self.optimizer, learning_rate=courses[schedule])

    @classmethod
    def fit_group(cls, methods: Sequence[AveragedNetwork], tasks: Sequence[Task], **how: Any) -> list[Fitted]:
        method = methods[0]
        try:
            return super().fit_group(methods, tasks, **how)
        except NonFiniteError:
            if len(methods) > 1 or not method.restarts or math.isnan(method.rate):
                raise
        slower = replace(method, learning_rate=method.rate / 2, restarts=method.restarts - 1)
        fitted = cls.fit_group([slower], tasks, **how)
        warn(
            f"Training diverged at a learning rate of {method.rate:g} and was repeated at {slower.rate:g}. Pass "
            f"learning_rate={slower.rate:g} or less to save the first attempt."
        )
        return fitted


def _tell_lost(what: str) -> None:
    warn(
        f"The network cannot be trained with {what}, so it is trained without, which is slower. Pass "
        'precision="float32" to avoid this warning.'
    )


def per_sample(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss with one value per sample, from a module of torch with a mean over the batch or from any function.

    The mean of the values is torch's mean: with class weights, it divides by the sum of the weights of the labels.
    """
    if not isinstance(loss, nn.Module) or getattr(loss, "reduction", None) != "mean":
        return loss
    whole = copy.deepcopy(loss)
    whole.reduction = "none"  # type: ignore[assignment]
    return PerSample(whole, getattr(loss, "weight", None))


@dataclass(frozen=True)
class PerSample:
    """A torch loss without reduction, scaled so that its mean is that of torch's weighted mean."""

    loss: nn.Module
    weight: Tensor | None = None

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        losses = self.loss.to(logits)(logits, targets)
        return losses if self.weight is None else losses / self.weight.to(logits)[targets].mean()


class Divergence(Callback):
    """Raise an error if the training loss is far above its start and above chance.

    The loss is smoothed over about 50 steps. "Far above" is twice the first loss, or twice log C if that is more.
    """

    def __init__(self, n_classes: int, *, every: int) -> None:
        self.chance, self.every = math.log(n_classes), every
        self._first: Tensor | None = None
        self._smooth: Tensor | None = None

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self._first = self._smooth = None

    def on_step(self, run: Run) -> None:
        loss = run.inner_losses.mean()
        if self._first is None or self._smooth is None:
            self._first, self._smooth = run.inner_losses[0], loss
        self._smooth = torch.lerp(self._smooth, loss, 0.1)
        if run.step % self.every:
            return
        run.look()
        first, smooth = float(self._first), float(self._smooth)
        if smooth > 2 * max(self.chance, first):
            raise NonFiniteError(
                f"The training loss rose from {first:.3g} to {smooth:.3g} at outer step {run.step}: training diverges. "
                "Use a smaller learning rate."
            )

    def state_dict(self) -> dict[str, Any]:
        return {} if self._first is None else {"first": self._first, "smooth": self._smooth}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._first, self._smooth = state.get("first"), state.get("smooth")


class BestAverage(Callback):
    """Keep a moving average of one network's weights and buffers, and select the average with the lowest NLL on a part.

    ``average ← d·average + (1 − d)·θ`` after each outer step, where d grows to 0.95. Without a part, the result is the
    last average.

    Attributes
    ----------
    nll : the lowest NLL so far; infinite before the first evaluation
    best_step : the outer step with the lowest NLL
    """

    def __init__(self, part: Samples | None, *, every: int = 1, patience: float | None = PATIENCE) -> None:
        self.part, self.every, self.patience = part, every, patience
        self.nll, self.best_step = math.inf, 0
        self._average: State | None = None
        self._best: State | None = None

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.nll, self.best_step, self._average, self._best = math.inf, 0, None, None

    def on_step(self, run: Run) -> None:
        present = run.live_state._replace(moments=())
        if self._average is None:
            self._average = present.map(torch.clone)
        else:
            _mix(self._average, present, min(DECAY, run.step / (9 + run.step)))
        if run.step % self.every == 0 or run.step >= run.outer_steps or not bool(run.active.any()):
            self.look(run)

    def look(self, run: Run) -> None:
        """Evaluate the current average."""
        assert self._average is not None
        if self.part is None:
            return
        value = float(mean_on(run, self._average, self.part, functools.partial(F.cross_entropy, reduction="none")))
        if math.isnan(value):
            raise NonFiniteError(
                f"The loss on the validation data was NaN after outer step {run.step}. Check for validation inputs "
                "that are not finite, or use a smaller learning rate."
            )
        if value < self.nll:
            self.nll, self.best_step = value, run.step
            self._best = self._average.map(lambda t: t.to("cpu", copy=True))  # on a GPU, memory is scarce
        elif self.patience is not None and run.step - self.best_step >= self.patience * run.outer_steps:
            run.stop("the validation NLL no longer improves")

    def on_end(self, run: Run) -> None:
        if self._average is None:
            return
        device = run.phi.device
        chosen_state = self._average if self._best is None else self._best.map(lambda t: t.to(device))
        run.state = run.live_state._replace(params=chosen_state.params, buffers=chosen_state.buffers)

    def state_dict(self) -> dict[str, Any]:
        saved: dict[str, Any] = {"nll": self.nll if math.isfinite(self.nll) else None, "best_step": self.best_step}
        for name, state in (("average", self._average), ("best", self._best)):
            saved |= {} if state is None else {f"{name}.{key}": tensor for key, tensor in state.tensors().items()}
        return saved

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.nll = math.inf if state.get("nll") is None else state["nll"]
        self.best_step = state.get("best_step", 0)
        average, best = named(state, "average."), named(state, "best.")
        self._average, self._best = (State.of(tensors, 0) if tensors else None for tensors in (average, best))


def mean_on(run: Run, state: State, part: Samples, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The (weighted) mean of ``function(logits, labels)``, one value per sample, of a single network on a part."""
    values = function(*evaluated(run, state, part))
    weights = torch.ones_like(values) if part.sample_weight is None else part.sample_weight.to(values)
    return values @ weights / weights.sum()


def evaluated(run: Run, state: State, part: Samples) -> tuple[Tensor, Tensor]:
    """Logits of a single network in a state and labels of a part, both on the CPU."""
    problem = run.problem
    assert isinstance(problem, Bilevel)
    net = problem.view.bind(state.params, state.buffers, train=False, autocast=problem.autocast)
    with torch.no_grad():
        return part.predicted(lambda inputs: net.logits(inputs).double())


def _mix(average: State, state: State, decay: float) -> None:
    """``average ← decay·average + (1 − decay)·state`` in place; numbers that are not floating-point are copied."""
    values = state.tensors()
    for name, tensor in average.tensors().items():
        if tensor.is_floating_point():
            torch.lerp(values[name], tensor, decay, out=tensor)
        else:
            tensor.copy_(values[name])

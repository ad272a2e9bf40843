"""One network with averaged weights: the default if training several networks would take too long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.bilevel import Adam, Bilevel, Callback, History, Plain, composed, one_cycle
from calibrant.bilevel.dynamics import State
from calibrant.bilevel.finite import NonFiniteError
from calibrant.bilevel.run import Run
from calibrant.methods.adapter import Group, Outcome, Solving
from calibrant.methods.base import Method
from calibrant.methods.part import Part
from calibrant.methods.task import Task, streams, total_steps

STRIDE = 5
"""Training steps between two updates of the average."""
DECAY = 0.95
PATIENCE = 0.3
"""Training stops if the average has not improved for this share of the run."""


@dataclass(frozen=True)
class AveragedNetwork(Method):
    """One network: Adam with a one-cycle schedule; the result is a moving average of its weights.

    With a validation part, the average is evaluated after every epoch, and the one with the lowest NLL is kept.
    Training stops early if the NLL has not improved for 30 % of the run.

    Parameters
    ----------
    epochs : int, optional
        Passes over the training data; None: ``steps`` steps or ``passes`` epochs, whichever is more.
    learning_rate : float
        The largest rate of the schedule.
    batch_size : int, optional
        Samples per step for data in memory; a loader uses its own batch size.
    steps, passes : int
        The length of training if ``epochs`` is None.
    """

    one_by_one: ClassVar[bool] = True
    epochs: int | None = None
    learning_rate: float = 0.003
    batch_size: int | None = 128
    steps: int = 1200
    passes: int = 20

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive; got {self.learning_rate}.")

    def data(self, task: Task) -> dict[str, Any]:
        return streams(task, self.batch_size, val=False)

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        return Bilevel(model, **self.data(task), inner_loss=composed(), seed=task.seed)

    def solving(self, group: Group) -> Solving:
        batches = group.problems[0].train.batches
        steps = max(2, total_steps(batches, self.epochs, 1, self.steps, self.passes))
        return Solving(
            hypergradient=Plain(STRIDE),
            inner_optimizer=Adam(one_cycle(self.learning_rate, steps, warmup=0.2)),
            steps=[steps],
            callbacks=[BestAverage(group.tasks[0].val, every=max(1, batches // STRIDE))],
            history=History(),
        )

    def learned(self, outcome: Outcome) -> dict[str, Any]:
        return {"history": {"inner_loss": outcome.history.get("inner_loss")}}


class BestAverage(Callback):
    """Keep a moving average of one network's weights and buffers, and select the average with the lowest NLL on a part.

    ``average ← d·average + (1 − d)·θ`` after each outer step, where d grows to 0.95. Without a part, the result is the
    last average.

    Attributes
    ----------
    nll : the lowest NLL so far; infinite before the first evaluation
    best_step : the outer step with the lowest NLL
    """

    def __init__(self, part: Part | None, *, every: int = 1) -> None:
        self.part, self.every = part, every
        self.nll, self.best_step = math.inf, 0
        self._average: State | None = None
        self._best: State | None = None

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.nll, self.best_step, self._average, self._best = math.inf, 0, None, None

    def on_step(self, run: Run) -> None:
        decay = min(DECAY, run.step / (9 + run.step))
        self._average = run.state if self._average is None else _mean(self._average, run.state, decay)
        if run.step % self.every == 0 or run.step >= run.outer_steps or not bool(run.active.any()):
            self.look(run)

    def look(self, run: Run) -> None:
        """Evaluate the current average."""
        assert self._average is not None
        if self.part is None:
            self._best = self._average
            return
        value = self._nll(run, self.part)
        if math.isnan(value):
            raise NonFiniteError(
                f"The loss on the validation data was NaN after outer step {run.step}. Check for validation inputs "
                "that are not finite, or use a smaller learning rate."
            )
        if value < self.nll:
            self.nll, self.best_step, self._best = value, run.step, self._average
        elif run.step - self.best_step >= PATIENCE * run.outer_steps:
            run.stop("the validation NLL no longer improves")

    def on_end(self, run: Run) -> None:
        found = self._best or self._average
        if found is not None:
            run.state = found._replace(step=run.state.step)

    def _nll(self, run: Run, part: Part) -> float:
        problem, state = run.problem, self._average
        assert isinstance(problem, Bilevel)
        assert state is not None
        net = problem.view.bind(state.params, state.buffers, train=False, autocast=problem.autocast)
        total, count, seen = 0.0, 0.0, 0
        with torch.no_grad():
            for inputs, labels in part.pieces():
                own = F.cross_entropy(net.logits(inputs).double(), labels.to(state.params.device), reduction="none")
                weights = torch.ones_like(own)
                if part.sample_weight is not None:
                    weights = part.sample_weight[seen : seen + len(own)].to(own)
                total, count, seen = total + float((own * weights).sum()), count + float(weights.sum()), seen + len(own)
        return total / count

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"nll": self.nll if math.isfinite(self.nll) else None, "best_step": self.best_step}
        for name, state in (("average", self._average), ("best", self._best)):
            if state is not None:
                found |= {f"{name}.params": state.params}
                found |= {f"{name}.buffer.{k}": b for k, b in state.buffers.items()}
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.nll = math.inf if state.get("nll") is None else state["nll"]
        self.best_step = state.get("best_step", 0)
        self._average, self._best = (_read(state, f"{name}.") for name in ("average", "best"))


def _mean(average: State, state: State, decay: float) -> State:
    def mixed(a: Tensor, b: Tensor) -> Tensor:
        return torch.lerp(b, a, decay) if a.is_floating_point() else b

    buffers = {name: mixed(average.buffers[name], b) for name, b in state.buffers.items()}
    return state._replace(params=mixed(average.params, state.params), buffers=buffers)


def _read(kept: dict[str, Any], prefix: str) -> State | None:
    own = {name.removeprefix(prefix): value for name, value in kept.items() if name.startswith(prefix)}
    if not own:
        return None
    return State(own.pop("params"), (), {name.removeprefix("buffer."): b for name, b in own.items()}, 0)

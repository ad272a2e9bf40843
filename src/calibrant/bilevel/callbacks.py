"""Callbacks, which act between outer steps: a history, a progress bar, checkpoints, early stopping, and averages.

The solver knows none of them by name.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.base.settings import shown
from calibrant.bilevel.gradients.dynamics import State
from calibrant.bilevel.problem.evaluation import outer_loss_of_all, val_batches
from calibrant.bilevel.running.checkpoints import save_run
from calibrant.bilevel.running.finite import NonFiniteError
from calibrant.bilevel.running.run import Run
from calibrant.data.streams.batch import Batch


class Callback:
    """Base class of callbacks. Override any of its methods."""

    last = False
    """Whether it runs after all other callbacks, because it must see what they did."""

    def on_start(self, run: Run) -> None:
        """Called before the first outer step, also after resuming."""

    def on_step(self, run: Run) -> None:
        """Called after each outer step."""

    def on_end(self, run: Run) -> None:
        """Called after the last outer step, also when an error ended the run."""

    def state_dict(self) -> dict[str, Any]:
        """Values that a checkpoint saves: numbers, strings, lists and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the values of :meth:`state_dict`."""


def as_callbacks(callbacks: Any) -> list[Callback]:
    """The callbacks of a run as a list; an error if they are something else."""
    callback_list = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    wrong = next((callback for callback in callback_list if not hasattr(callback, "on_step")), None)
    if wrong is None and isinstance(callbacks, Iterable):
        return callback_list
    advice = "Pass [callback]." if wrong is None else "Derive a class from Callback, with on_step(run)."
    raise TypeError(f"callbacks must be a list of calibrant.bilevel.Callback; got {shown(callbacks)}. {advice}")


class History(Callback):
    """Record losses and hypergradient norms of every outer step, and φ every ``phi_every`` steps.

    After the run, ``history["inner_loss"]``, ``["outer_loss"]`` and ``["gradient_norm"]`` are tensors with one row per
    outer step; for a population, they have one column per member. The first row of ``history["phi"]`` is φ before the
    first step, and one row follows for every ``phi_every`` steps; without ``phi_every`` it is empty. A member that has
    stopped repeats its last values.
    """

    def __init__(self, *, phi_every: int | None = None) -> None:
        if phi_every is not None and phi_every < 1:
            raise ValueError(f"phi_every must be at least 1, or None; got {phi_every}.")
        self.phi_every = phi_every
        self.rows: dict[str, list[Tensor]] = {"inner_loss": [], "outer_loss": [], "gradient_norm": [], "phi": []}

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.rows = {name: [] for name in self.rows}
        if self.phi_every and not self.rows["phi"]:
            self.rows["phi"].append(run.phi.cpu())

    def on_step(self, run: Run) -> None:
        self._add(run, "inner_loss", run.inner_losses[-1])
        if run.outer_loss is not None:
            self._add(run, "outer_loss", run.outer_loss)
        if run.gradient is not None:
            self._add(run, "gradient_norm", run.gradient.norm(dim=-1))
        if self.phi_every and run.step % self.phi_every == 0:
            self.rows["phi"].append(run.phi.cpu())

    def _add(self, run: Run, name: str, values: Tensor) -> None:
        rows = self.rows[name]  # they stay on the device: copying them in each step would delay training
        rows.append(run.select(run.ran, values.detach(), rows[-1]) if rows else values.detach())

    def __getitem__(self, name: str) -> Tensor:
        return torch.stack(self.rows[name]).cpu() if self.rows[name] else torch.empty(0, device="cpu")

    def state_dict(self) -> dict[str, Any]:
        return {name: self[name] for name, rows in self.rows.items() if rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # φ is kept on the CPU. The other rows continue on the device of the run, where a checkpoint is loaded to.
        rows = {name: values.cpu() if name == "phi" else values for name, values in state.items()}
        self.rows = {name: list(rows[name]) if name in rows else [] for name in self.rows}


class ProgressBar(Callback):
    """A line on standard error that shows the steps and the losses.

    It shows nothing if standard error is not a terminal, unless ``force`` is True.
    """

    def __init__(self, description: str = "training", *, force: bool = False) -> None:
        self.description, self.force = description, force
        self._begin = self._shown = 0.0
        self._first = 0

    @property
    def _visible(self) -> bool:
        return self.force or sys.stderr.isatty()

    def on_start(self, run: Run) -> None:
        self._begin, self._shown, self._first = time.perf_counter(), 0.0, run.step

    def on_step(self, run: Run) -> None:
        now = time.perf_counter()
        if not self._visible or (now - self._shown < 0.1 and run.step < run.outer_steps):
            return  # reading a loss would wait for the device
        self._shown = now
        left = (now - self._begin) * (run.outer_steps - run.step) / max(1, run.step - self._first)
        text = f"{self.description} {run.step}/{run.outer_steps}, about {left:.0f} s left,{self._losses(run)}"
        print(f"\r{text:<100}", end="", file=sys.stderr, flush=True)

    def on_end(self, run: Run) -> None:
        if self._visible:
            print(file=sys.stderr)

    def _losses(self, run: Run) -> str:
        parts = [f" inner {run.inner_losses[-1].nanmean().item():.4f}"]
        if run.outer_loss is not None:
            parts.append(f" outer {run.outer_loss.nanmean().item():.4f}")
        if run.is_population:
            parts.append(f" {int(run.active.sum())}/{len(run.active)} members")
        return "".join(parts)


class Checkpoint(Callback):
    """Write the run and the state of its callbacks into one file, every ``every`` outer steps.

    ``solve(..., resume=path)`` continues the run.
    """

    last = True

    def __init__(self, path: str | Path, *, every: int = 10) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1; got {every}.")
        self.path, self.every = Path(path), every

    def on_start(self, run: Run) -> None:
        _ = run.fingerprint  # it needs the first batches, which are released later

    def on_step(self, run: Run) -> None:
        if run.step % self.every == 0:
            save_run(self.path, run)


class EarlyStopping(Callback):
    """Stop when a criterion on held-out data has not improved for ``patience`` outer steps.

    Each member of a population stops separately. Tied members share φ, so they stop together, by the mean criterion
    of those that still run.

    Parameters
    ----------
    criterion : callable ``run -> Tensor``, optional
        One value per member; smaller is better. The default is the outer loss after the step's training, computed from
        the predictions on all validation data together. :func:`pooled` makes a criterion from any function of logits
        and labels.
    patience : int, optional
        The number of outer steps without an improvement after which the run stops. None never stops and only remembers
        the best state.
    min_delta : float
        The smallest change that counts as an improvement.
    restore_best : bool
        End with the parameters, buffers and φ of the best step instead of the last step.
    every : int
        The number of outer steps between two evaluations of the criterion.
    """

    def __init__(
        self,
        criterion: Callable[[Run], Tensor] | None = None,
        *,
        patience: int | None = 10,
        min_delta: float = 0.0,
        restore_best: bool = True,
        every: int = 1,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1; got {every}.")
        self.criterion = criterion or self._outer_loss
        self.patience, self.min_delta, self.restore_best, self.every = (patience, min_delta, restore_best, every)
        self.best: Tensor | None = None
        self.best_step: Tensor | None = None
        self._best_state: State | None = None
        self._best_phi: Tensor | None = None
        self._batches: list[Batch] = []

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.best = self.best_step = self._best_state = self._best_phi = None
        if self.criterion == self._outer_loss:  # all validation data, the same in every evaluation
            self._batches = val_batches(run.problem)

    def on_step(self, run: Run) -> None:
        if run.step % self.every:
            return
        value = self.criterion(run).detach().reshape(-1).cpu().double()
        self._refuse_nan(run, value)
        if self.best is None:
            self.best = torch.full_like(value, float("inf"))
            self.best_step = torch.zeros_like(value, dtype=torch.long)
            self._best_state, self._best_phi = run.state, run.phi
        assert self.best_step is not None
        counts = run.ran & ~run.active.new_tensor([m in run.failures for m in range(len(run.active))])
        value = run.pool(value, counts)
        better = (value < self.best - self.min_delta) & counts
        self.best = torch.where(better, value, self.best)
        self.best_step = torch.where(better, run.step, self.best_step)
        if bool(better.any()):
            self._best_state = run.select(better, run.state, self._best_state)
            self._best_phi = run.select(run.together(better), run.phi, self._best_phi)
        if self.patience is not None:
            run.stop(f"no improvement for {self.patience} outer steps", run.step - self.best_step >= self.patience)

    def on_end(self, run: Run) -> None:
        if self.restore_best and self._best_state is not None and self._best_phi is not None:
            run.state, run.phi = self._best_state._replace(step=run.live_state.step), self._best_phi

    def _outer_loss(self, run: Run) -> Tensor:
        """The outer loss of all predictions together, which is not the mean of the losses of batches."""
        if len(self._batches) == 1:
            return run.evaluate(batch=self._batches[0])
        state = run.live_state
        return outer_loss_of_all(run.problem, state.params, state.buffers, run.phi, self._batches)

    def _refuse_nan(self, run: Run, value: Tensor) -> None:
        """Fail members whose criterion is NaN. Otherwise they would silently return to their first step."""
        for member in (value.isnan() & run.active).nonzero().flatten().tolist():
            message = (
                f"The criterion of early stopping was NaN after outer step {run.step}. Look for held-out data on which "
                "it is undefined, or for predictions that are not finite."
            )
            if not run.is_population:
                raise NonFiniteError(message)
            run.fail(member, message)

    def state_dict(self) -> dict[str, Any]:
        if self._best_state is None:
            return {}
        found = {"best": self.best, "best_step": self.best_step, "phi": self._best_phi, "step": self._best_state.step}
        return found | self._best_state.tensors()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.best, self.best_step, self._best_phi = state["best"].cpu(), state["best_step"].cpu(), state["phi"]
            self._best_state = State.of(state, state["step"])


class MovingAverage(Callback):
    """An exponential moving average of the weights, which becomes the result of the run.

    The k-th update of the average is ``average ← d·average + (1 − d)·θ`` with ``d = min(decay, k/(k + 9))``. The first
    updates forget faster, so the average of a short run does not lag behind. Buffers (BatchNorm's
    statistics) are averaged in the same way, and so is φ with ``outer=True``. Training itself does not change.

    Parameters
    ----------
    decay : float
        Between 0 and 1.
    every : int
        The number of outer steps between two updates of the average.
    start : float
        The share of the run before the first update.
    outer : bool
        Also average φ, for outer variables that belong to the trained network.
    """

    def __init__(self, decay: float = 0.98, *, every: int = 1, start: float = 0.5, outer: bool = False) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must be between 0 and 1; got {decay}.")
        if every < 1 or not 0 <= start < 1:
            raise ValueError(f"every must be at least 1, and start at least 0 and below 1; got {every=} and {start=}.")
        self.decay, self.every, self.start, self.outer = decay, every, start, outer
        self.average: State | None = None
        self.phi: Tensor | None = None
        self.looks = 0

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.average, self.phi, self.looks = None, None, 0

    def on_step(self, run: Run) -> None:
        if run.step % self.every or run.step < self.start * run.outer_steps:
            return
        state, self.looks = run.live_state._replace(moments=()), self.looks + 1
        if self.average is None:
            self.average = state.map(torch.clone)
            self.phi = run.phi.clone() if self.outer else None
            return
        new = 1 - min(self.decay, self.looks / (self.looks + 9))
        averages, values = self.average.tensors(), state.tensors()
        if self.phi is not None:
            averages["phi"], values["phi"] = self.phi, run.phi
        for name, average in averages.items():
            if average.is_floating_point():
                average.lerp_(values[name], new)
            else:
                average.copy_(values[name])

    def on_end(self, run: Run) -> None:
        if self.average is not None:
            run.state = run.state._replace(params=self.average.params, buffers=self.average.buffers)
            run.phi = run.phi if self.phi is None else self.phi

    def state_dict(self) -> dict[str, Any]:
        if self.average is None:
            return {}
        averages = {"looks": self.looks, **self.average.tensors()}
        return averages if self.phi is None else averages | {"phi": self.phi}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.average, self.phi, self.looks = State.of(state, 0), state.get("phi"), int(state["looks"])

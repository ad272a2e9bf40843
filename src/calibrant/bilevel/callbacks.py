"""What may happen between outer steps. Each callback is a small object; the solver knows none of them by name."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.bilevel import checkpoint
from calibrant.bilevel.dynamics import State
from calibrant.bilevel.features import join, join_answers
from calibrant.bilevel.finite import NonFiniteError
from calibrant.bilevel.problem import Bilevel
from calibrant.bilevel.run import Run
from calibrant.data.batch import Batch, Tensors
from calibrant.data.members import MemberStream


class Callback:
    """The interface. ``state_dict`` is what a checkpoint keeps: numbers, strings, lists and tensors."""

    last = False
    """Whether it must see what all other callbacks did in a step."""

    def on_start(self, run: Run) -> None:
        """Before the first outer step (or the first one after resuming)."""

    def on_step(self, run: Run) -> None:
        """After each outer step."""

    def on_end(self, run: Run) -> None:
        """After the last outer step, also when an error ended the run."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`state_dict` gave."""


class History(Callback):
    """Losses and hypergradient norms of every outer step, and φ every ``phi_every`` steps if asked for.

    After the run, ``history["outer_loss"]`` and the like are tensors with one row an outer step (one column a member).
    A member that has stopped repeats its last values.
    """

    def __init__(self, *, phi_every: int | None = None) -> None:
        if phi_every is not None and phi_every < 1:
            raise ValueError(f"phi_every must be at least 1, or None; got {phi_every}.")
        self.phi_every = phi_every
        self.rows: dict[str, list[Tensor]] = {
            "inner_loss": [],
            "outer_loss": [],
            "gradient_norm": [],
            "phi": [],
        }

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
        rows = self.rows[name]  # on the device: moving them at each step would hold up training
        rows.append(run.select(run.ran, values.detach(), rows[-1]) if rows else values.detach())

    def __getitem__(self, name: str) -> Tensor:
        return torch.stack(self.rows[name]).cpu() if self.rows[name] else torch.empty(0)

    def state_dict(self) -> dict[str, Any]:
        return {name: self[name] for name, rows in self.rows.items() if rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = {name: list(state[name].cpu()) if name in state else [] for name in self.rows}


class EarlyStopping(Callback):
    """Stop when a criterion on held-out data has not improved for ``patience`` outer steps; each member on its own.

    Tied members share φ: they are judged by the mean of their criteria (over those that still run) and stop together.

    Parameters
    ----------
    criterion : callable ``run -> Tensor``, optional
        Smaller is better; one value for each member. The default is the outer loss *after* the step's training, of the
        pooled predictions on all validation data. :func:`pooled` makes one of any function of logits and labels.
    patience : int, optional
        None never stops, and only remembers the best state.
    min_delta : float
        An improvement counts when it is larger than this.
    restore_best : bool
        End with the parameters, buffers and φ of the best step instead of the last.
    every : int
        Evaluate the criterion every so many outer steps.
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
        self.patience, self.min_delta, self.restore_best, self.every = (
            patience,
            min_delta,
            restore_best,
            every,
        )
        self.best: Tensor | None = None
        self.best_step: Tensor | None = None
        self._best_state: State | None = None
        self._best_phi: Tensor | None = None
        self._batches: list[Batch] = []

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.best = self.best_step = self._best_state = self._best_phi = None
        if self.criterion == self._outer_loss:  # all validation data, the same at every look
            count = 1 if run.problem.val is None else run.problem.val.batches
            self._batches = [run.problem.val_batch(step) for step in range(count)]

    def on_step(self, run: Run) -> None:
        if run.step % self.every:
            return
        value = self.criterion(run).detach().reshape(-1).double().cpu()
        self._refuse_nan(run, value)
        if self.best is None:
            self.best = torch.full_like(value, float("inf"))
            self.best_step = torch.zeros(len(value), dtype=torch.long)
            self._best_state, self._best_phi = run.state, run.phi
        assert self.best_step is not None
        counts = self._still_counts(run)
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
            run.state, run.phi = self._best_state._replace(step=run.state.step), self._best_phi

    def _outer_loss(self, run: Run) -> Tensor:
        """The outer loss of all predictions at once: a calibration error has no meaning as a mean over batches."""
        if len(self._batches) == 1:
            return run.evaluate(batch=self._batches[0])
        point = run.state.params, run.state.buffers, run.phi
        with torch.no_grad():
            answers = [run.problem.outer_answers(*point, batch) for batch in self._batches]
            axes = run.problem.val.axes if isinstance(run.problem.val, MemberStream) else None
            together = join_answers(answers, axes is not None)
            return run.problem.outer_given(together, *point, join(self._batches, axes))

    def _refuse_nan(self, run: Run, value: Tensor) -> None:
        """NaN is never an improvement: without a word the run would stop and return to its first step."""
        for member in (value.isnan() & run.active).nonzero().flatten().tolist():
            message = (
                f"The criterion of early stopping was NaN after outer step {run.step}; look for held-out data on which "
                "it is undefined, or for a prediction that is not finite."
            )
            if not run.is_population:
                raise NonFiniteError(message)
            run.fail(member, message)

    def _still_counts(self, run: Run) -> Tensor:
        """Members that stopped in this very step still count; those that stopped before do not."""
        just_now = torch.tensor([run.stop_steps.get(m) == run.step for m in range(len(run.active))])
        failed = torch.tensor([m in run.failures for m in range(len(run.active))])
        return (run.active | just_now) & ~failed

    def state_dict(self) -> dict[str, Any]:
        if self.best is None or self._best_state is None:
            return {}
        state = self._best_state
        return {
            "best": self.best,
            "best_step": self.best_step,
            "phi": self._best_phi,
            "params": state.params,
            "step": state.step,
            **{f"moment{k}": m for k, m in enumerate(state.moments)},
            **{f"buffer.{k}": b for k, b in state.buffers.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.best, self.best_step, self._best_phi = state["best"].cpu(), state["best_step"].cpu(), state["phi"]
            moments = tuple(state[f"moment{k}"] for k in range(len([k for k in state if k.startswith("moment")])))
            buffers = {k.removeprefix("buffer."): v for k, v in state.items() if k.startswith("buffer.")}
            self._best_state = State(state["params"], moments, buffers, state["step"])


@dataclass(frozen=True)
class pooled:
    """A criterion for :class:`EarlyStopping`: ``function(logits, labels)`` of all validation data at once.

    ``pooled(calibrant.losses.sece)``, say. One value; smaller is better.
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, run: Run) -> Tensor:
        if run.problem.val is None:
            raise ValueError("A criterion on held-out predictions needs validation data: Bilevel(..., val=…).")
        single = not run.is_population
        problems = [run.problem] if isinstance(run.problem, Bilevel) else run.problem.problems
        values = []
        for member, problem in enumerate(problems):
            assert problem.val is not None
            params = run.state.params if single else run.state.params[member]
            buffers = run.state.buffers if single else {k: b[member] for k, b in run.state.buffers.items()}
            net = problem.view.bind(params, buffers, train=False, autocast=problem.autocast)
            batches = [problem.val_batch(step) for step in range(problem.val.batches)]
            with torch.no_grad():
                logits = torch.cat([net.logits(batch.inputs) for batch in batches])
                values.append(self.function(logits, torch.cat([batch.targets for batch in batches])))
        return torch.stack([torch.as_tensor(value) for value in values])


class MovingAverage(Callback):
    """An exponential moving average of the weights, which becomes the result.

    After the share ``start`` of the run, every ``every`` outer steps, ``average ← d·average + (1 − d)·θ``, with ``d =
    min(decay, k/(k + 9))`` at look k. The first looks count less, so that a short run is not held at its middle.
    Buffers (BatchNorm's statistics) are averaged the same way, and φ where ``outer`` is True. Training itself is not
    changed.

    Parameters
    ----------
    decay : float
        Between 0 and 1.
    every : int
        Outer steps between two looks.
    start : float
        The share of the run before the first look.
    use : bool
        End the run with the average as its parameters. False only keeps it, as ``state``.
    outer : bool
        Average φ as well, for outer variables that belong to the trained network.
    """

    def __init__(
        self, decay: float = 0.98, *, every: int = 1, start: float = 0.5, use: bool = True, outer: bool = False
    ) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must lie between 0 and 1; got {decay}.")
        if every < 1 or not 0 <= start < 1:
            raise ValueError(f"every must be at least 1 and start a share of the run; got {every} and {start}.")
        self.decay, self.every, self.start, self.use, self.outer = decay, every, start, use, outer
        self.params: Tensor | None = None
        self.phi: Tensor | None = None
        self.looks = 0
        self.buffers: Tensors = {}

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.params, self.buffers, self.phi, self.looks = None, {}, None, 0

    def on_step(self, run: Run) -> None:
        if run.step % self.every or run.step < self.start * run.outer_steps:
            return
        state, self.looks = run.state, self.looks + 1
        if self.params is None:
            self.params, self.buffers = state.params.clone(), {k: b.clone() for k, b in state.buffers.items()}
            self.phi = run.phi.clone() if self.outer else None
            return
        new = 1 - min(self.decay, self.looks / (self.looks + 9))
        self.params.lerp_(state.params, new)
        if self.phi is not None:
            self.phi.lerp_(run.phi, new)
        for name, buffer in state.buffers.items():
            if buffer.is_floating_point():
                self.buffers[name].lerp_(buffer, new)
            else:
                self.buffers[name].copy_(buffer)

    def on_end(self, run: Run) -> None:
        if self.use and self.params is not None:
            run.state = self.state(run)
            run.phi = run.phi if self.phi is None else self.phi

    def state(self, run: Run) -> State:
        """The averaged state; that of the run before there is an average."""
        if self.params is None:
            return run.state
        return run.state._replace(params=self.params, buffers=self.buffers)

    def state_dict(self) -> dict[str, Any]:
        if self.params is None:
            return {}
        found = {"params": self.params} if self.phi is None else {"params": self.params, "phi": self.phi}
        return found | {"looks": self.looks} | {f"buffer.{k}": b for k, b in self.buffers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.params, self.phi, self.looks = state["params"], state.get("phi"), int(state["looks"])
            self.buffers = {k.removeprefix("buffer."): b for k, b in state.items() if k.startswith("buffer.")}


class Checkpoint(Callback):
    """Write the whole run, callbacks included, into one file every ``every`` outer steps. ``solve(resume=path)`` goes
    on.
    """

    last = True

    def __init__(self, path: str | Path, *, every: int = 10) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1; got {every}.")
        self.path, self.every = Path(path), every

    def on_start(self, run: Run) -> None:
        _ = run.fingerprint  # the first batches are still there

    def on_step(self, run: Run) -> None:
        if run.step % self.every == 0:
            checkpoint.save(self.path, run)


class ProgressBar(Callback):
    """A bar on standard error: rich where it is installed, plain text otherwise, nothing when it is no terminal."""

    def __init__(self, description: str = "training", *, force: bool = False) -> None:
        self.description, self.force = description, force
        self._bar: Any = None
        self._begin = self._shown = 0.0

    def on_start(self, run: Run) -> None:
        self._begin, self._shown = time.perf_counter(), 0.0
        if not (self.force or sys.stderr.isatty()):
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            self._bar = None
            return
        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(self.description, total=run.outer_steps, completed=run.step)
        self._bar.start()

    def on_step(self, run: Run) -> None:
        now = time.perf_counter()
        if not (self.force or sys.stderr.isatty()) or (now - self._shown < 0.1 and run.step < run.outer_steps):
            return  # reading a loss waits for the device
        self._shown = now
        text = self.description + self._losses(run)
        if self._bar is not None:
            self._bar.update(self._task, completed=run.step, description=text)
        elif self.force or sys.stderr.isatty():
            print(f"\r{text} {run.step}/{run.outer_steps}", end="", file=sys.stderr, flush=True)

    def on_end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif self.force or sys.stderr.isatty():
            print(file=sys.stderr)

    def _losses(self, run: Run) -> str:
        parts = [f" inner {run.inner_losses[-1].nanmean().item():.4f}"]
        if run.outer_loss is not None:
            parts.append(f" outer {run.outer_loss.nanmean().item():.4f}")
        if run.is_population:
            parts.append(f" {int(run.active.sum())}/{len(run.active)} members")
        return "".join(parts)

"""The interface of callbacks, and small ones: the history of a run, a progress bar, and checkpoints."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.base.settings import shown
from calibrant.bilevel.running.checkpoints import save_run
from calibrant.bilevel.running.run import Run


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

"""A progress bar on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any

from calibrant.bilevel.callbacks.base import Callback
from calibrant.bilevel.run import Run


class ProgressBar(Callback):
    """A progress bar on standard error, by rich if it is installed and as plain text otherwise.

    It shows nothing if standard error is not a terminal, unless ``force`` is True.
    """

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
            return  # reading a loss would wait for the device
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

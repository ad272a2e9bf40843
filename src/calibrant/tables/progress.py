"""Progress of a long fit and its remaining time: a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Self, TextIO

from calibrant.bilevel import Callback
from calibrant.bilevel.run import Run
from calibrant.tables.estimate import TimeEstimate

BETWEEN_LINES = 10.0
"""Seconds between two lines if there is no terminal."""
REFRESH = 0.5


class TrainingClock:
    """The finished share of a fit, and its remaining time.

    The estimate gives each stage's share of the time; measured time gives the actual speed.
    """

    def __init__(self, estimate: TimeEstimate, now: Callable[[], float] = time.perf_counter) -> None:
        self.estimate, self.now = estimate, now
        self.begin = now()
        self.stage = "networks"
        self._runs = max(1, estimate.runs)
        self._finished, self._share = 0, 0.0
        self._loaded = 0.0
        self._pace, self._others = 1.0, 0.0

    @property
    def _each(self) -> float:
        return self.estimate.networks / self.estimate.runs

    def start_run(self, loaded: float = 0.0) -> None:
        """Start a run of the networks; there is one run, or one per kind of network.

        ``loaded`` is the share of the run that was read from a checkpoint, which says nothing about the speed.
        """
        self._runs = max(self._runs, self._finished + 1)
        self._share, self.stage = 0.0, "networks"
        self._loaded += loaded

    def step(self, share: float) -> None:
        """Set the finished share of the current run."""
        start = self.estimate.start / self._each  # is over once there is a first step
        self._share = start + (1 - start) * share
        measured = self._finished + self._share - self._loaded
        if measured > 0.01:
            self._pace = (self.now() - self.begin) / (measured * self._each)

    def end_run(self) -> None:
        """End the current run; the stages after the last run are not counted in steps."""
        self.step(1.0)
        self._finished, self._share = self._finished + 1, 0.0
        if self._finished >= self._runs:
            self.stage, self._others = "trees, lines and calibration", self.now()

    @property
    def left(self) -> float:
        """The estimated remaining seconds."""
        networks = (self._runs - self._finished - self._share) * self._each
        others = self.estimate.others
        if self.stage != "networks":
            others = max(0.0, others - (self.now() - self._others) / self._pace)
        return self._pace * (max(0.0, networks) + others)

    @property
    def share(self) -> float:
        """The elapsed share of the expected time."""
        elapsed = self.now() - self.begin
        return elapsed / max(elapsed + self.left, 1e-9)


class FitProgress(Callback):
    """Show the progress of a fit; use it as a context manager and as a callback of ``fit``."""

    def __init__(self, estimate: TimeEstimate, write: TextIO | None = None) -> None:
        self.clock = TrainingClock(estimate)
        self.out = write if write is not None else sys.stderr
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self.out.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}")]
            self._bar = Progress(*columns, console=Console(file=self.out), transient=True)
            self._task = self._bar.add_task(self.clock.stage, total=1.0, left="")
            self._bar.start()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        if self._bar is not None:
            self._bar.stop()

    def on_start(self, run: Run) -> None:
        self.clock.start_run(_share(run))

    def on_step(self, run: Run) -> None:
        self.clock.step(_share(run))

    def on_end(self, run: Run) -> None:
        self.clock.end_run()

    def _watch(self) -> None:
        while not self._end.wait(BETWEEN_LINES if self._bar is None else REFRESH):
            self.show()

    def show(self) -> None:
        """Show the current progress."""
        left = about(self.clock.left)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.clock.share, description=self.clock.stage, left=left)
        else:
            print(f"{self.clock.stage}: {self.clock.share:.0%} done, {left}", file=self.out, flush=True)


def _share(run: Run) -> float:
    return run.step / max(1, int(run.outer_steps))


def about(seconds: float) -> str:
    """Return the remaining time in words; it is rounded, because it is only an estimate."""
    if seconds < 5:
        return "a few seconds left"
    if seconds < 60:
        return f"about {5 * round(seconds / 5)} s left"
    return f"about {round(seconds / 60)} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"

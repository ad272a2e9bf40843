"""Save checkpoints of long runs, and continue interrupted runs from them."""

from __future__ import annotations

import time
from pathlib import Path

from calibrant.bilevel import Callback, Checkpoint, Run
from calibrant.bilevel.running.checkpoints import load_run
from calibrant.methods.fit.guards import Interruptible

EVERY = 60.0
"""Seconds between two checkpoints."""


class OutOfTime(Exception):
    """The time of a command is up; the next command continues the run from its checkpoint."""


class UnusableCheckpoint(Exception):
    """A checkpoint of another problem, other settings or another version; the run must start again."""


class Resume(Callback):
    """Continues a new run from its checkpoint, if there is one. It must come before callbacks that have a state.

    A checkpoint that cannot be used raises :class:`UnusableCheckpoint`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_start(self, run: Run) -> None:
        if run.step == 0 and self.path.exists():
            try:
                load_run(self.path, run)
            except ValueError as error:
                raise UnusableCheckpoint(str(error)) from error


class TimedCheckpoint(Checkpoint):
    """Saves a checkpoint every ``seconds``, and one at ``deadline`` (``time.monotonic``), which ends the run.

    If Ctrl-C was pressed while ``interrupt`` was listening, it also saves one and raises KeyboardInterrupt.
    """

    def __init__(
        self,
        path: Path,
        *,
        seconds: float = EVERY,
        deadline: float | None = None,
        interrupt: Interruptible | None = None,
    ) -> None:
        super().__init__(path, every=1)
        self.seconds, self.deadline, self.interrupt = seconds, deadline, interrupt
        self._saved = 0.0

    def on_start(self, run: Run) -> None:
        super().on_start(run)
        self._saved = time.monotonic()

    def on_step(self, run: Run) -> None:
        now = time.monotonic()
        over = self.deadline is not None and now > self.deadline and run.step < run.outer_steps
        pressed = self.interrupt is not None and self.interrupt.pressed
        if over or pressed or now - self._saved >= self.seconds:
            super().on_step(run)
            self._saved = now
        if pressed:
            raise KeyboardInterrupt
        if over:
            raise OutOfTime

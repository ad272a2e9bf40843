"""Checkpoints during a run."""

from __future__ import annotations

from pathlib import Path

from calibrant.bilevel.callbacks.base import Callback
from calibrant.bilevel.checkpoint import save_run
from calibrant.bilevel.run import Run


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

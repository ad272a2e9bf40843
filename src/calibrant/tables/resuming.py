"""Checkpoints of an unfinished fit, from which a rerun of `calibrant train` continues."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from calibrant._whole import WriteError
from calibrant.bilevel import Callback
from calibrant.bilevel.run import Run
from calibrant.methods.safeguards import Opening, Resumable

SECONDS = 5.0
"""Time between two checkpoints of the networks."""


class UnreadableCheckpoint(Exception):
    """A checkpoint that is damaged, or that another version of the code wrote."""


class Checkpoints(Resumable):
    """Save the networks of a fit to a folder, and continue from there; an unusable file raises UnreadableCheckpoint.

    A file that cannot be written, because the disk is full, does not stop the training: then there are no checkpoints.
    """

    writable = True

    def begin(self, run: Run) -> None:
        try:
            super().begin(run)
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableCheckpoint(str(error)) from error

    def on_step(self, run: Run) -> None:
        if not self.writable:
            return
        try:
            super().on_step(run)
        except (OSError, WriteError):
            self.writable = False
            self.clear()


def prepared(work: Path, run: str, *, fresh: bool) -> Path:
    """Return the folder for checkpoints of a run inside ``work``; everything else in ``work`` is removed."""
    kept = work / f"training-{run}"
    for path in work.iterdir() if work.is_dir() else ():
        if path == kept and not fresh:
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    kept.mkdir(parents=True, exist_ok=True)
    return kept


def fit_resumably(fit: Callable[[Sequence[Callback]], Any], folder: Path, seconds: float | None = None) -> None:
    """Call ``fit(callbacks)``, which continues from the checkpoints in ``folder``; unusable ones are deleted."""
    while True:
        saving = Checkpoints(folder, SECONDS if seconds is None else seconds)
        try:
            fit([Opening(saving), saving])
        except UnreadableCheckpoint:
            saving.clear()
        else:
            return

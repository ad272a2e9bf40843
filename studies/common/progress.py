"""Progress of a study on standard error: a line now and then, with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import ClassVar, Self

from calibrant.base.words import count, duration
from calibrant.bilevel import Callback, Run
from studies.common.keys import Key

BETWEEN_LINES = 10.0
"""Seconds between two lines."""
SETTLED = 60.0
"""Until so many seconds have passed, the time left is told only if a tenth of the work is done.

The first runs also load libraries and record their steps, so an estimate from them alone is too long.
"""
COSTS = {"ensemble": 3, "bo4sc": 8, "self-calibrated": 40, "self-calibrated-pool": 60}
"""Rough times of a run of these methods relative to the other methods of the same study, on a processor."""


class StudyProgress(Callback):
    """Progress of the runs that a study still has to make; a context manager, and a callback of their training.

    The time left is extrapolated from the time that the finished runs took.
    """

    active: ClassVar[StudyProgress | None] = None
    """The study that this process works on."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.costs = {key: COSTS.get(name_in(key), 1) for key in keys}
        self.left = set(self.costs)
        self.current, self.share = frozenset[Key](), 0.0

    def __enter__(self) -> Self:
        StudyProgress.active = self
        self._begin = self._shown = time.perf_counter()
        self._show()
        return self

    def __exit__(self, *error: object) -> None:
        StudyProgress.active = None

    def start(self, keys: Iterable[Key]) -> None:
        """Begin the training of some runs, which train together."""
        self.current, self.share = frozenset(keys), 0.0

    def on_step(self, run: Run) -> None:
        self.share = max(self.share, run.step / max(1, int(run.outer_steps)))  # one job may train several populations
        self._show_now_and_then()

    def finish(self, keys: Iterable[Key]) -> None:
        """Count runs as finished; each run counts once."""
        self.left -= set(keys)
        self.share = 0.0
        self._show_now_and_then()

    @property
    def done(self) -> float:
        """The finished share of the work."""
        left, current = (sum(self.costs[key] for key in keys) for keys in (self.left, self.left & self.current))
        total = sum(self.costs.values())
        return (total - left + self.share * current) / total if total else 1.0

    def __str__(self) -> str:
        names = list(dict.fromkeys(name_in(key) for key in self.costs if key in self.left & self.current))
        text = f"{len(self.costs) - len(self.left)} of {count(len(self.costs), 'run')} finished"
        elapsed = time.perf_counter() - self._begin
        if self.done > (0.1 if elapsed < SETTLED else 0.0):
            text += f", about {duration(elapsed * (1 - self.done) / self.done)} left"
        return f"{text}; now {names[0]}{' and others' if names[1:] else ''}" if names else text

    def _show_now_and_then(self) -> None:
        now = time.perf_counter()
        if now - self._shown >= BETWEEN_LINES:
            self._shown = now
            self._show()

    def _show(self) -> None:
        if self.left:
            print(self, file=sys.stderr, flush=True)


def name_in(key: Key) -> str:
    """The method of a run; the data set if all runs have the same method."""
    fields = dict(key.fields)
    return str(fields.get("method", fields.get("dataset", "")))

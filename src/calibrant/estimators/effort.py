"""The memory and time that a fit to sparse columns takes, estimated before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from calibrant.base.words import duration
from calibrant.data.projection import AXES, SAMPLED

NETWORKS = 10
"""Networks of a default fit. Each has its own copy of the projected rows."""


class Effort(NamedTuple):
    """What determines the effort: rows, dense and sparse columns, stored entries and classes."""

    rows: int
    dense: int
    sparse: int
    entries: int
    classes: int

    @property
    def memory(self) -> float:
        """Bytes: sparse copies, projected rows, the projection, regularisation paths, and held-out predictions."""
        projected = 4.0 * self.rows * (AXES + self.dense) * (NETWORKS + 8)
        projection = 1700.0 * (min(self.rows, SAMPLED) + self.sparse)
        linear = 400.0 * self.sparse * self.classes + 96.0 * self.rows * self.classes
        return 2e8 + 48.0 * self.entries + projected + projection + linear

    @property
    def seconds(self) -> float:
        """Seconds of one processor, within a factor of about two: networks, linear models and trees."""
        steps = max(400.0, self.rows * 40 / 256)
        return 2.0 + 0.008 * steps + 6e-7 * self.entries * self.classes + 2e-5 * self.rows * self.classes

    def __str__(self) -> str:
        return f"{self.rows:,} rows × {self.sparse:,} sparse columns, {self.classes} classes"

    def check(self) -> None:
        """Raise an error if the memory that is available is smaller than the estimate."""
        free = available_memory()
        if free is not None and self.memory > free:
            raise ValueError(
                f"A fit to {self} needs about {self.memory / 2**30:.1f} GB of memory; got {free / 2**30:.1f} GB. Give "
                "fewer columns (max_features or min_df of a vectorizer, or a feature selection), or fewer rows."
            )

    @property
    def summary(self) -> str:
        """One sentence for the user."""
        return f"{self}: about {self.memory / 2**30:.1f} GB and {duration(self.seconds)} on one processor."


def available_memory() -> int | None:
    """Bytes that this process can still use, within the limit of its container; None if the system does not say."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cache = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(cache["inactive_file"]))
    except (OSError, KeyError, ValueError):  # no limit
        return free

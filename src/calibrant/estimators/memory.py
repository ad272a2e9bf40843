"""The memory that a fit to sparse columns takes, estimated before it starts."""

from __future__ import annotations

from pathlib import Path

from calibrant.data.projection import AXES, SAMPLED
from calibrant.estimators.reading import Inputs

NETWORKS = 10
"""Networks of a default fit. Each has its own copy of the projected rows."""


def check_memory(inputs: Inputs, n_classes: int) -> None:
    """Raise an error if a fit to sparse columns needs more memory than is available."""
    rows, columns = inputs.sparse.shape
    needed = memory(rows, inputs.dense.shape[1], columns, inputs.sparse.nnz, n_classes)
    free = available_memory()
    if free is not None and needed > free:
        raise ValueError(
            f"A fit to {rows:,} rows × {columns:,} sparse columns, {n_classes} classes needs about "
            f"{needed / 2**30:.1f} GB of memory; got {free / 2**30:.1f} GB. Give fewer columns (max_features or min_df "
            "of a vectorizer, or a feature selection), or fewer rows."
        )


def memory(rows: int, dense: int, columns: int, entries: int, n_classes: int) -> float:
    """Bytes for sparse copies, projected rows, the projection, regularisation paths and held-out predictions.

    ``dense`` and ``columns`` are numbers of dense and of sparse columns, ``entries`` is the number of stored values.
    """
    projected = 4.0 * rows * (AXES + dense) * (NETWORKS + 8)
    projection = 1700.0 * (min(rows, SAMPLED) + columns)
    linear = 400.0 * columns * n_classes + 96.0 * rows * n_classes
    return 2e8 + 48.0 * entries + projected + projection + linear


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

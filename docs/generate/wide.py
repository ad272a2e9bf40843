"""The table of docs/methods.md on wide sparse matrices and free text, beside linear models."""

from __future__ import annotations

from docs.generate.stored import stored
from studies.benchmarks.wide import table


def wide() -> str:
    """One row per stored case."""
    return table(list(stored("bench").records))


SECTIONS = {"wide": wide}

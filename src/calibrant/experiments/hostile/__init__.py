"""Data that nobody cleaned: one row for each way in which tables go wrong."""

from calibrant.experiments.hostile.study import run

__all__ = ["run"]

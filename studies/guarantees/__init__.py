"""Experiment on the guarantees of rejection rules and prediction sets (`python -m studies bench guarantees`)."""

from studies.guarantees.study import run

__all__ = ["run"]

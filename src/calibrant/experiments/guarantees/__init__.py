"""Experiment on the guarantees of rejection rules and prediction sets (`calibrant bench guarantees`)."""

from calibrant.experiments.guarantees.study import run

__all__ = ["run"]

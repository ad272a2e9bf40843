"""The experiment on hostile data: tables with copies, groups, noise, outliers and other defects."""

from calibrant.experiments.hostile.study import run

__all__ = ["run"]

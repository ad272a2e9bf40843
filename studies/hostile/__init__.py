"""The experiment on hostile data: tables with copies, groups, noise, outliers and other defects."""

from studies.hostile.study import run

__all__ = ["run"]

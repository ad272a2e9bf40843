"""The experiment on tables: every method on every table of a folder, compared with other libraries."""

from studies.tables.study import run

__all__ = ["run"]

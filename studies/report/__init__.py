"""Result files with their provenance, tables, and reports of studies as one self-contained HTML page."""

from studies.report.builder import Report, Verdict, require
from studies.report.results import (
    Record,
    Results,
    by_seed,
    command,
    provenance,
    read_results,
    write_results,
)
from studies.report.table import Column, Table, to_markdown, with_digits

__all__ = [
    "Column",
    "Record",
    "Report",
    "Results",
    "Table",
    "Verdict",
    "by_seed",
    "command",
    "provenance",
    "read_results",
    "require",
    "to_markdown",
    "with_digits",
    "write_results",
]

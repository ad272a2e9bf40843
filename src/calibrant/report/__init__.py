"""Result files in JSON with their provenance, tables, and reports as one self-contained HTML page.

>>> from calibrant.metrics import mean_interval
>>> from calibrant.report import format_number
>>> format_number(mean_interval([0.021, 0.024, 0.018]))
'0.021 ± 0.007'

Jinja2 and matplotlib (`pip install 'calibrant[report]'`) are imported when a page is written or a figure is added;
`require()` checks for them beforehand.
"""

from calibrant.report.builder import Report, Verdict, require
from calibrant.report.numbers import by_seed, format_number
from calibrant.report.results import Results, machine, provenance, read_results, versions, write_results
from calibrant.report.table import Column, Table, to_csv, to_markdown

__all__ = [
    "Column",
    "Report",
    "Results",
    "Table",
    "Verdict",
    "by_seed",
    "format_number",
    "machine",
    "provenance",
    "read_results",
    "require",
    "to_csv",
    "to_markdown",
    "versions",
    "write_results",
]

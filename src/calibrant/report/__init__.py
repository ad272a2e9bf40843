"""Reports on the predictions of any model: numbers, a verdict and a page (:mod:`calibrant.report.evaluation`).

>>> from calibrant.metrics import mean_interval
>>> from calibrant.report import format_number
>>> format_number(mean_interval([0.021, 0.024, 0.018]))
'0.021 ± 0.007'

Jinja2 and matplotlib (`pip install 'calibrant[report]'`) are imported when a page is written.
"""

from calibrant.report.numbers import MISSING, format_number
from calibrant.report.provenance import as_json, machine, versions

__all__ = ["MISSING", "as_json", "format_number", "machine", "versions"]

"""Which records of a result file were measured with an earlier version of the code.

Each record holds the version that measured it, and ``made_by`` in the config holds the version that measured each
method last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from calibrant.report.results import Record
from studies.tables.costs import is_cost


def earlier(records: Iterable[Record], made_by: Mapping[str, str]) -> dict[str, int]:
    """Return how many scores of each method were measured with an earlier version, whose scores may differ."""
    outdated = [r["method"] for r in records if not is_cost(r) and _is_earlier(r, made_by)]
    return {method: outdated.count(method) for method in dict.fromkeys(outdated)}


def earlier_costs(records: Iterable[Record], method: str, made_by: Mapping[str, str]) -> list[str]:
    """Return the tables on which a method's cost was measured with an earlier version."""
    costs = (r for r in records if is_cost(r) and r["method"] == method and r["failure"] is None)
    return [record["table"] for record in costs if _is_earlier(record, made_by)]


def _is_earlier(record: Record, made_by: Mapping[str, str]) -> bool:
    """Whether another version measured the method last; without a known last version, nothing counts as earlier."""
    return record["method"] in made_by and record.get("code", "") != made_by[record["method"]]

"""Which records of a result file were measured with an earlier version of the code, by the digests that they hold.

Each record holds the version of the code that measured it, and ``made_by`` in the config holds the version that
measured each method last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from calibrant.experiments.tables.costs import is_cost
from calibrant.experiments.tables.ids import kind
from calibrant.report.results import Record

_LIBRARIES = frozenset(
    {
        "090dc42ccf59",
        "1c1122e4fe65",
        "257cc4d36053",
        "6f4361927b17",
        "7d1a481c2adc",
        "adb78653c03e",
        "b679732cf1b9",
        "e88236085acf",
        "eac4406e6255",
    }
)
EQUAL: dict[str, frozenset[str]] = {
    "ours": frozenset({"0c6deaeb3dd2", "32a9f504703e", "49bf74f6a7de", "538e1bfd703f", "eb6c9f90529f", "f6e332c61488"})
    | frozenset({"11299d6a067a", "49e75f3c10e6", "58307236b53c", "6ced6f892a96", "758434b2e582", "ac8c7ac29e93"})
    | frozenset({"cc9203f68da5"}),
    "network, baseline": frozenset({"0c6deaeb3dd2", "32a9f504703e", "3c84207afd6d", "ede25c97c9d3"}),
    "network, other library": _LIBRARIES,
    "trees": _LIBRARIES,
}
"""Digests whose code gives the same scores, by the kind of the method.

Every edit changes the digest, but few edits change scores. A digest is added after runs of the others were measured
again with its code, on the same machine, and gave the same scores.
"""


def earlier(records: Iterable[Record], made_by: Mapping[str, str]) -> dict[str, int]:
    """Return how many scores of each method were measured with an earlier version, whose scores may differ."""
    found: dict[str, int] = {}
    for record in records:
        method = record["method"]
        if not is_cost(record) and not _equal(record.get("code", ""), made_by.get(method), kind(method)):
            found[method] = found.get(method, 0) + 1
    return found


def earlier_costs(records: Iterable[Record], method: str, made_by: Mapping[str, str]) -> list[str]:
    """Return the tables on which a method's cost was measured with an earlier version; any edit may change costs."""
    own = (r for r in records if is_cost(r) and r["method"] == method and r["failure"] is None)
    return [record["table"] for record in own if record.get("code", "") != made_by[method]] if method in made_by else []


def _equal(version: str, last: str | None, group: str) -> bool:
    """Whether two versions give the same scores. Without a known last version, nothing counts as earlier."""
    if last is None or version == last:
        return True
    (packages, _, digest), (others, _, known) = version.rpartition("code "), last.rpartition("code ")
    return packages == others and {digest, known} <= EQUAL.get(group, frozenset())

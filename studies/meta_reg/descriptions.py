"""One-line descriptions of the methods in the report."""

from __future__ import annotations

import re
from functools import cache

from calibrant.methods.catalogue import IMAGE_METHODS, TABLE_3
from studies.meta_reg.noisy import NOISY_METHODS
from studies.meta_reg.variants import variants

_ROW = re.compile(r"^\s*``(?P<name>\S+)``\s+(?P<text>.+)$", re.MULTILINE)
_REST = "…"


def describe(method: str) -> str:
    """What a method is, or what its variant changes; empty for an unknown method."""
    known = _known()
    if method in known:
        return known[method]
    several = (name for name in known if _REST in name and _pattern(name).match(method))
    longest = max(several, key=len, default=None)
    if longest is None or (found := _pattern(longest).match(method)) is None:
        return ""
    return known[longest].replace(_REST, found[1])


def _pattern(name: str) -> re.Pattern[str]:
    """The ids that a name with "…" stands for, such as ``published-…`` or ``…-mixed``; its group is what "…" is."""
    return re.compile("(.+)".join(map(re.escape, name.split(_REST))) + "$")


@cache
def _known() -> dict[str, str]:
    """Summaries of the methods by id; the variants have theirs in the table of :func:`variants`' docstring."""
    found: dict[str, str] = {}
    for entries in (IMAGE_METHODS, TABLE_3, NOISY_METHODS):
        found |= _spelled_out([(name, entry.summary) for name, entry in entries.items()])
    return found | _spelled_out([(row["name"], row["text"]) for row in _ROW.finditer(variants.__doc__ or "")])


def _spelled_out(rows: list[tuple[str, str]]) -> dict[str, str]:
    """Replace "the same" by the id of the row before, because a table may show the rows in another order."""
    before = [""] + [name for name, _ in rows]
    return {
        name: re.sub(r"^the same\b", f"like {previous}", text)
        for previous, (name, text) in zip(before, rows, strict=False)
    }

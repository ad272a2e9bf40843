"""Finding columns that name persons or cases with several rows, for a hint about `--groups`."""

from __future__ import annotations

import re

import numpy as np

from calibrant.data.columns import missing_count, texts
from calibrant.tables.reading import Labelled

FEWEST_GROUPS = 10
MOST_ROWS_EACH = 50
"""With more rows per value on average, a column is hardly the identifier of a person."""
FEWEST_ROWS_EACH = 1.2
CLEAR, LARGE = 6.0, 0.1
"""Rows of one value are alike if their equal pairs exceed chance by this many deviations and this share of pairs."""

_WHO = {
    *(
        "patient",
        "patienten",
        "subject",
        "person",
        "participant",
        "respondent",
        "proband",
        "user",
        "customer",
        "client",
    ),
    *("kunde", "kunden", "student", "employee", "household", "speaker", "driver", "animal"),
}
_WHICH = {"id", "uuid", "no", "nr", "num", "number", "code", "key", "name"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def repeated_cases(table: Labelled) -> dict[str, int]:
    """Return the columns that name persons or cases with several similar rows, with their numbers of values.

    Such a column is called "patient", "customer_id", "subjectNo" or similar, has few rows per value, and rows of one
    value have equal labels, or equal values in another column, clearly more often than by chance.
    """
    found = {}
    for name, column in table.columns.items():
        if not names_case(name) or missing_count(column):
            continue
        groups = _codes(column)
        many = int(groups.max()) + 1
        if many < FEWEST_GROUPS or not FEWEST_ROWS_EACH <= len(table) / many <= MOST_ROWS_EACH:
            continue
        others = (own for other, own in table.columns.items() if other != name)
        if any(alike(groups, _codes(own)) for own in (table.labels, *others)):
            found[name] = many
    return found


def names_case(name: str) -> bool:
    """Whether a column is called like a person or an identifier: no other words, such as age in customer_age."""
    words: list[str] = []
    for word in map(str.lower, _WORD.findall(name)):
        end = next((end for end in _WHICH if word.endswith(end) and word.removesuffix(end) in _WHO), "")
        words += [word.removesuffix(end), end] if end else [word]
    return bool(words) and set(words) <= _WHO | _WHICH and bool(set(words) & (_WHO | {"id", "uuid"}))


def alike(groups: np.ndarray, codes: np.ndarray) -> bool:
    """Whether rows of one group have equal codes clearly more often than by chance."""
    pairs = _pairs(groups)
    chance = _pairs(codes) / _pairs(np.zeros_like(codes))
    excess = _pairs(groups * (int(codes.max()) + 1) + codes) - pairs * chance
    return bool(excess > max(CLEAR * np.sqrt(pairs * chance * (1 - chance)), LARGE * pairs))


def _pairs(codes: np.ndarray) -> float:
    """The number of pairs of rows with equal codes."""
    counts = np.unique(codes, return_counts=True)[1].astype(float)
    return float((counts * (counts - 1)).sum() / 2)


def _codes(column: np.ndarray) -> np.ndarray:
    """The distinct values of a column as numbers from 0 on; missing values count as one value."""
    found: np.ndarray = np.unique(["" if v is None else f"={v}" for v in texts(column)], return_inverse=True)[1]
    return found

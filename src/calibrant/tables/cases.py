"""Finding columns that name persons or cases with several rows, for a hint about `--groups`."""

from __future__ import annotations

import re

import numpy as np

from calibrant.data.columns.values import missing_count, texts
from calibrant.tables.read import Labelled

FEWEST_CASES = 10
FEWEST_ROWS_EACH = 1.2
MOST_ROWS_EACH = 50
"""With more rows per value on average, a column is hardly the identifier of a person."""
CLEAR, LARGE = 6.0, 0.1
"""Rows of one value are alike if their equal pairs exceed chance by this many deviations and this share of pairs."""

_WHO = {
    *("pat", "patient", "patienten", "subject", "person", "participant", "respondent", "proband", "individual"),
    *("user", "customer", "client", "kunde", "kunden", "student", "pupil", "employee", "speaker", "driver"),
    *("household", "family", "animal"),
}
_WHICH = {"id", "uuid", "no", "nr", "num", "number", "nummer", "code", "key", "name"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def repeated_cases(table: Labelled) -> dict[str, int]:
    """Return the columns that name persons or cases with several similar rows, with their numbers of values.

    These are columns called "patient", "customer_id", "subjectNo" or similar, with few rows per value. Rows of one
    value have equal labels, or equal values in another column, clearly more often than by chance.
    """
    cases = {}
    for name in filter(names_case, table.columns):
        groups = value_codes(table.columns[name])
        number = int(groups.max()) + 1
        few_each = FEWEST_ROWS_EACH <= len(table) / number <= MOST_ROWS_EACH
        if missing_count(table.columns[name]) or number < FEWEST_CASES or not few_each:
            continue
        others = (column for other, column in table.columns.items() if other != name)
        if any(alike(groups, value_codes(values)) for values in (table.labels, *others)):
            cases[name] = number
    return cases


def alike(groups: np.ndarray, codes: np.ndarray) -> bool:
    """Whether rows of one group have equal codes clearly more often than by chance."""
    pairs, by_chance = _pairs(groups), _pairs(codes) / _pairs(np.zeros_like(codes))
    if not pairs or by_chance >= 1:
        return False
    excess = _pairs(groups * (int(codes.max()) + 1) + codes) / pairs - by_chance
    return excess > max(CLEAR * np.sqrt(by_chance * (1 - by_chance) / pairs), LARGE)


def names_case(name: str) -> bool:
    """Whether a column is called like a person or an identifier: no other words, such as age in customer_age."""
    words = set(words_of(name))
    return words <= _WHO | _WHICH and bool(words & (_WHO | {"id", "uuid"}))


def words_of(name: str) -> list[str]:
    """The words of a column's name in lower case; "Kundennr" has two."""
    words: list[str] = []
    for word in map(str.lower, _WORD.findall(name)):
        end = next((end for end in _WHICH if word.endswith(end) and word.removesuffix(end) in _WHO), "")
        words += [word.removesuffix(end), end] if end else [word]
    return words


def value_codes(column: np.ndarray) -> np.ndarray:
    """The distinct values of a column as numbers from 0 on; missing values count as one value."""
    codes: np.ndarray = np.unique(["" if v is None else f"={v}" for v in texts(column)], return_inverse=True)[1]
    return codes


def _pairs(codes: np.ndarray) -> float:
    """The number of pairs of rows with equal codes."""
    counts = np.unique(codes, return_counts=True)[1].astype(float)
    return float((counts * (counts - 1)).sum() / 2)

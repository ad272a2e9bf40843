"""Finding columns that name persons or cases with several rows, for a hint about `--groups`."""

from __future__ import annotations

import re

import numpy as np

from calibrant.data.columns.hints import looks_like
from calibrant.data.columns.values import Columns, is_iso_date, is_numeric, missing_count, numbers, set_of, texts
from calibrant.data.splits.exact_copies import row_codes
from calibrant.tables.read import Labelled

FEWEST_CASES = 10
FEWEST_ROWS_EACH = 1.2
MOST_ROWS_EACH = 50
"""With more rows per value on average, a column is hardly the identifier of a person."""
CLEAR, LARGE = 6.0, 0.1
"""Rows of one value are alike if their equal pairs exceed chance by this many deviations and this share of pairs."""
COMMON = 0.25
"""A value in a larger share of the rows is hardly a case. It is rather a default, such as 0 or the end of a study."""
STRONG = 0.5
"""From this agreement of labels on, a column with any name may name cases; that of ordinary categories is lower."""
_LONGEST = 40
"""Longer texts are not codes."""

_WHO = {
    *("pat", "patient", "patienten", "subject", "person", "participant", "respondent", "proband", "individual"),
    *("user", "customer", "client", "kunde", "kunden", "student", "pupil", "employee", "speaker", "driver"),
    *("household", "family", "animal"),
}
_WHICH = {"id", "uuid", "no", "nr", "num", "number", "nummer", "code", "key", "name"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def repeated_cases(table: Labelled) -> dict[str, int]:
    """Return the columns that name persons or cases with several similar rows, with their numbers of values.

    Columns called "patient", "customer_id", "subjectNo" or similar come first: they have few rows per value, and rows
    of one value have equal labels, or equal values in another column, clearly more often than by chance. Without such a
    column, one with another name is found by its structure; see :func:`case_column`.
    """
    candidates = {
        name: column
        for name, column in table.columns.items()
        if not missing_count(column) and _has_few_rows_each(column)
    }
    cases = {}
    for name in filter(names_case, candidates):
        groups = value_codes(candidates[name])
        others = (column for other, column in table.columns.items() if other != name)
        if any(agreement(groups, value_codes(values)) for values in (table.labels, *others)):
            cases[name] = int(groups.max()) + 1
    if not cases and (other := case_column(table, candidates)) is not None:
        cases[other] = len(set_of(candidates[other]))
    return cases


def case_column(table: Labelled, candidates: Columns) -> str | None:
    """Return the column of whole numbers or codes (S01, 4f2a) that most likely names cases, whatever it is called.

    It has few rows per value, no value in a large share of the rows, and rows of one value have equal labels much more
    often than by chance, and than rows of neighbouring values: a quantity such as an age says as much about the labels
    of its neighbours. Copies of a row count once.
    """
    candidates = {name: column for name, column in candidates.items() if _holds_codes(column)}
    if not candidates:
        return None
    distinct = row_codes(table.frame)
    rows = np.arange(len(table)) if distinct is None else np.sort(np.unique(distinct, return_index=True)[1])
    labels = np.unique(table.labels[rows], return_inverse=True)[1]
    agreements = {}
    for name, column in candidates.items():
        column = column[rows]
        ordered = is_numeric(column)
        groups = np.unique(numbers(column, name), return_inverse=True)[1] if ordered else value_codes(column)
        if _has_few_rows_each(column) and np.bincount(groups).max() <= COMMON * len(groups):
            agreements[name] = agreement(groups, labels, ordered=ordered)
    best = max(agreements, key=agreements.__getitem__, default=None)
    return best if best is not None and agreements[best] >= STRONG else None


def agreement(groups: np.ndarray, codes: np.ndarray, *, ordered: bool = False) -> float:
    """Return how much more often rows of one group have equal codes than by chance: 0 if never, 1 if always.

    ``ordered`` groups are also compared with rows of the next group, as numbers of a quantity are similar to their
    neighbours. The result is 0 if the difference may be due to chance.
    """
    width = int(codes.max()) + 1
    keys, counts = np.unique(groups * width + codes, return_counts=True)
    pairs, base = _pairs(groups), _pairs(codes) / _pairs(np.zeros_like(codes))
    if ordered:
        sizes = np.bincount(groups).astype(float)
        place = np.minimum(np.searchsorted(keys, keys + width), len(keys) - 1)
        equal_pairs = float((counts * counts[place] * (keys[place] == keys + width)).sum())
        base = max(base, equal_pairs / max((sizes[1:] * sizes[:-1]).sum(), 1.0))
    if not pairs or base >= 1:
        return 0.0
    excess = float((counts * (counts - 1.0)).sum()) / 2 / pairs - base
    clear = excess > max(CLEAR * np.sqrt(base * (1 - base) / pairs), LARGE)
    return excess / (1 - base) if clear else 0.0


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


def _has_few_rows_each(column: np.ndarray) -> bool:
    """Whether a column has many values, each in several rows but not in too many."""
    n_values = len(np.unique(column) if column.dtype.kind in "iuf" else set_of(column))
    return n_values >= FEWEST_CASES and FEWEST_ROWS_EACH <= len(column) / n_values <= MOST_ROWS_EACH


def _holds_codes(column: np.ndarray) -> bool:
    """Whether the values are whole numbers from 0 on, or texts with digits that are no dates and no quantities."""
    if is_numeric(column):
        values = numbers(column, "x")
        return bool(np.all((values >= 0) & (values == np.rint(values))))
    if column.dtype.kind != "O":
        return False
    values_as_text = [str(v) for v in set_of(column)]
    if not all(any(map(str.isdigit, v)) and len(v) <= _LONGEST for v in values_as_text):
        return False
    return not all(map(is_iso_date, values_as_text)) and looks_like("x", values_as_text) is None


def _pairs(codes: np.ndarray) -> float:
    """The number of pairs of rows with equal codes."""
    counts = np.unique(codes, return_counts=True)[1].astype(float)
    return float((counts * (counts - 1)).sum() / 2)

"""Finding columns that name persons or cases with several rows, for a hint about `--groups`."""

from __future__ import annotations

import re

import numpy as np

from calibrant.data.columns import is_numeric, missing_count, numbers, set_of, texts
from calibrant.data.columns.column_format import is_iso_date
from calibrant.data.columns.hints import looks_like
from calibrant.data.splits.exact_copies import row_codes
from calibrant.tables.reading import Labelled

FEWEST_GROUPS = 10
MOST_ROWS_EACH = 50
"""With more rows per value on average, a column is hardly the identifier of a person."""
FEWEST_ROWS_EACH = 1.2
CLEAR, LARGE = 6.0, 0.1
"""Rows of one value are alike if their equal pairs exceed chance by this many deviations and this share of pairs."""
COMMON = 0.25
"""A value in a larger share of the rows is hardly a case. It is rather a default, such as 0 or the end of a study."""
STRONG = 0.5
"""From this agreement of labels on, a column with any name may name cases; that of ordinary categories is lower."""
_LONGEST = 40
"""Longer texts are not codes."""

_WHO = {
    *(
        "pat",
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
    *("individual", "family", "pupil"),
}
_WHICH = {"id", "uuid", "no", "nr", "num", "number", "nummer", "code", "key", "name"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def repeated_cases(table: Labelled) -> dict[str, int]:
    """Return the columns that name persons or cases with several similar rows, with their numbers of values.

    Columns called "patient", "customer_id", "subjectNo" or similar come first: they have few rows per value, and rows
    of one value have equal labels, or equal values in another column, clearly more often than by chance. Without such a
    column, one with another name is found by its structure; see :func:`case_column`.
    """
    cases = {}
    for name, column in table.columns.items():
        if not names_case(name) or missing_count(column) or not _few_rows_each(column):
            continue
        groups = _codes(column)
        other_columns = (values for other, values in table.columns.items() if other != name)
        if any(alike(groups, _codes(values)) for values in (table.labels, *other_columns)):
            cases[name] = int(groups.max()) + 1
    if not cases and (other := case_column(table)) is not None:
        cases[other] = len(set_of(table.columns[other]))
    return cases


def case_column(table: Labelled) -> str | None:
    """Return the column of whole numbers or codes (S01, 4f2a) that most likely names cases, whatever it is called.

    It has few rows per value, no value in a large share of the rows, and rows of one value have equal labels much more
    often than by chance, and than rows of neighbouring values: a quantity such as an age says as much about the labels
    of its neighbours. Copies of a row count once.
    """
    names = [name for name, column in table.columns.items() if _may_name_cases(column) and not missing_count(column)]
    if not names:
        return None
    distinct = row_codes(table.frame(list(table.columns)))
    rows = np.arange(len(table)) if distinct is None else np.sort(np.unique(distinct, return_index=True)[1])
    labels = np.unique(table.labels[rows], return_inverse=True)[1]
    agreement = {}
    for name in names:
        column = table.columns[name][rows]
        if _few_rows_each(column) and not _has_default(column):
            ordered = is_numeric(column)
            groups = np.unique(numbers(column, name), return_inverse=True)[1] if ordered else _codes(column)
            agreement[name] = label_agreement(groups, labels, ordered)
    best = max(agreement, key=agreement.__getitem__, default=None)
    return best if best is not None and agreement[best] >= STRONG else None


def label_agreement(groups: np.ndarray, labels: np.ndarray, ordered: bool) -> float:
    """Return how much more often rows of one group have equal labels than by chance: 0 if never, 1 if always.

    ``ordered`` groups are also compared with rows of the next group, as numbers of a quantity are similar to their
    neighbours. The result is 0 if the difference may be due to chance.
    """
    classes = int(labels.max()) + 1
    keys, counts = np.unique(groups * classes + labels, return_counts=True)
    pairs, base = _pairs(groups), _pairs(labels) / _pairs(np.zeros_like(labels))
    if ordered:
        sizes = np.bincount(groups).astype(float)
        place = np.minimum(np.searchsorted(keys, keys + classes), len(keys) - 1)
        equal_pairs = float((counts * counts[place] * (keys[place] == keys + classes)).sum())
        base = max(base, equal_pairs / max((sizes[1:] * sizes[:-1]).sum(), 1.0))
    if not pairs or base >= 1:
        return 0.0
    excess = float((counts * (counts - 1.0)).sum()) / 2 / pairs - base
    clear = excess > max(CLEAR * np.sqrt(base * (1 - base) / pairs), LARGE)
    return excess / (1 - base) if clear else 0.0


def _few_rows_each(column: np.ndarray) -> bool:
    """Whether a column has many values, each in several rows but not in too many."""
    n_values = len(np.unique(column) if column.dtype.kind in "iuf" else set_of(column))
    return n_values >= FEWEST_GROUPS and FEWEST_ROWS_EACH <= len(column) / n_values <= MOST_ROWS_EACH


def _has_default(column: np.ndarray) -> bool:
    """Whether one value is in a large share of the rows."""
    return bool(np.bincount(_codes(column)).max() > COMMON * len(column))


def _may_name_cases(column: np.ndarray) -> bool:
    """Whether the values are whole numbers from 0 on, or texts with digits that are no dates and no quantities.

    There are several rows for each value.
    """
    if column.dtype.kind in "iuf":  # without a loop, as tables can have many rows
        return bool(np.all((column >= 0) & (column == np.rint(column)))) and _few_rows_each(column)
    if column.dtype.kind != "O" or not _few_rows_each(column):
        return False
    if is_numeric(column):
        return _may_name_cases(numbers(column, "x"))
    texts = [str(v) for v in set_of(column)]
    if not all(any(map(str.isdigit, v)) and len(v) <= _LONGEST for v in texts):
        return False
    return not all(map(is_iso_date, texts)) and looks_like("x", texts) is None


def names_case(name: str) -> bool:
    """Whether a column is called like a person or an identifier: no other words, such as age in customer_age."""
    name_parts: list[str] = []
    for name_part in map(str.lower, _WORD.findall(name)):
        end = next((end for end in _WHICH if name_part.endswith(end) and name_part.removesuffix(end) in _WHO), "")
        name_parts += [name_part.removesuffix(end), end] if end else [name_part]
    return bool(name_parts) and set(name_parts) <= _WHO | _WHICH and bool(set(name_parts) & (_WHO | {"id", "uuid"}))


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
    codes: np.ndarray = np.unique(["" if v is None else f"={v}" for v in texts(column)], return_inverse=True)[1]
    return codes

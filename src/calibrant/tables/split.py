"""The division of a table into rows for training, validation and testing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from calibrant.base.words import count, listed
from calibrant.data.columns.parquet import need_pandas
from calibrant.data.splits.exact_copies import copy_groups, joined
from calibrant.estimators.reading import hold_out
from calibrant.tables.methods import find_method
from calibrant.tables.order import Order
from calibrant.tables.read import ALONE, Labelled, check_classes, read_part, time_text

FEWEST_ROWS = 10
FEWEST_TEST_ROWS = 2
FROM_TRAIN, FROM_VAL = 0.2, 1 / 3
"""The share of training or validation rows that is set aside to choose a rejection rule without out-of-fold rows."""


@dataclass(frozen=True)
class TableParts:
    """The rows of each part; ``val`` if requested, ``aside`` if the rejection rule needs separate rows."""

    train: Labelled
    val: Labelled | None
    test: Labelled
    notes: tuple[str, ...] = ()
    aside: Labelled | None = None


def split(table: Labelled, order: Order) -> TableParts:
    """Divide a table, by time if it has times, else stratified by class with groups and copies of a row in one part.

    If the classifier has no out-of-fold probabilities of rows that it may trust, rows are set aside that choose the
    rejection rule: validation rows, whose labels are trusted, else training rows.
    """
    _check(table, order)
    copies = copy_groups(table.frame)
    parts = _divide(table, order, copies)
    _check_parts(parts, table)
    notes = chain(_notes(table, order, parts, copies), _overlaps(parts, order), _copied(parts, order))
    parts = replace(parts, notes=tuple(dict.fromkeys(notes)))
    if order.val is not None:
        val, aside = _apart(parts.val, FROM_VAL, order.seed)
        return replace(parts, val=val, aside=aside)
    if find_method(order.method).cross_fitted:
        return parts
    train, aside = _apart(parts.train, FROM_TRAIN, order.seed)
    return replace(parts, train=train, aside=aside)


def _check(table: Labelled, order: Order) -> None:
    if order.test_overlap and order.groups is None:
        raise ValueError("--test-overlap must come with --groups, whose overlap it accepts; got no --groups.")
    if len(table) < FEWEST_ROWS:
        raise ValueError(
            f"{table.file} must have at least {FEWEST_ROWS} rows with a label, and some hundreds to be of use; got "
            f"{len(table)}."
        )
    if order.time is not None and not isinstance(order.test, float):
        raise ValueError(
            "--time takes the test rows from the table, so --test must be a share of its rows, such as 0.2; got "
            f"{order.test}. Leave one of the two out."
        )


def _divide(table: Labelled, order: Order, copies: np.ndarray | None) -> TableParts:
    """The test part and the validation part; the other rows are for training."""
    val = None if order.val is None else read_part(order, order.val, table)
    if not isinstance(order.test, float):
        return TableParts(table, val, read_part(order, order.test, table))
    if table.times is None:
        together = joined(_group_numbers(table), copies)
        kept, apart = _drawn(np.unique(table.labels, return_inverse=True)[1], order.test, order.seed, together)
    else:
        kept, apart = _newest(table.times, order.test, f"{table.file} cannot be divided by {order.time!r}")
    return TableParts(table.take(kept), val, table.take(apart))


def _drawn(codes: np.ndarray, share: float, seed: int, together: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to keep and the rows to hold out, drawn at random; every class is among the kept rows."""
    if together is not None and len(np.unique(together)) < 2:
        together = None
    kept, apart = hold_out(codes, share, seed=seed, groups=together)
    lacking = np.isin(codes[apart], np.setdiff1d(codes, codes[kept]))
    if together is not None:
        lacking = np.isin(together[apart], together[apart[lacking]])
    return np.sort(np.concatenate([kept, apart[lacking]])), apart[~lacking]


def _newest(times: np.ndarray, share: float, problem: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the older rows, and about a share of newest ones; rows of one time stay together."""
    values, counts = np.unique(times, return_counts=True)
    if len(values) < 2:
        raise ValueError(
            f"The rows of {problem}, because all have the same value. Name another column, or leave --time out."
        )
    rows_from = np.cumsum(counts[::-1])[::-1]
    first = values[1:][np.abs(rows_from[1:] - share * len(times)).argmin()]
    return np.flatnonzero(times < first), np.flatnonzero(times >= first)


def _apart(source: Labelled | None, share: float, seed: int) -> tuple[Labelled, Labelled]:
    """Return the rows that stay in their part, and those that choose when predictions are withheld."""
    assert source is not None
    groups = _group_numbers(source)
    one_group = groups is not None and groups.max() < 1
    if len(source) < 4 or one_group:
        raise ValueError(
            f"{count(len(source), 'row')} of {source.file}{' in one group' if one_group else ''} are too few to set "
            "some aside for choosing when to withhold predictions; give more rows."
        )
    kept, apart = _drawn(np.unique(source.labels, return_inverse=True)[1], share, seed, groups)
    return source.take(kept), source.take(apart)


def _group_numbers(table: Labelled) -> np.ndarray | None:
    return None if table.groups is None else np.unique(table.groups, return_inverse=True)[1]


def _check_parts(parts: TableParts, table: Labelled) -> None:
    train, test = parts.train, parts.test
    check_classes(train.labels, table.target, "the training part of " + table.file)
    if newer := [name for name in table.classes if name not in train.classes]:
        raise ValueError(
            f"The class {newer[0]!r} of {table.target!r} has no training row, because --time holds the newest rows "
            "out. Use a smaller --test, or leave --time out."
        )
    if train.groups is not None and len(np.unique(train.groups)) < 2:
        raise ValueError(
            f"The training part of {table.file} holds one group only. Training needs at least two groups besides those "
            "of the test part; give a table with more groups, or leave --groups out."
        )
    if len(test) < FEWEST_TEST_ROWS:
        raise ValueError(
            f"The test part has {count(len(test), 'row')}; at least {FEWEST_TEST_ROWS} are needed to judge the "
            "classifier. Give a larger --test, or more rows"
            + (", or another --seed: groups are never divided." if train.groups is not None else ".")
        )


def _notes(table: Labelled, order: Order, parts: TableParts, copies: np.ndarray | None) -> Iterator[str]:
    """Notes on how the files were read and divided."""
    for part in (table, parts.test, parts.val):
        yield from () if part is None else part.notes
    if copies is not None:
        more = len(copies) - len(np.unique(copies))
        repeat = "repeats" if more == 1 else "repeat"
        ending = "." if order.time is not None else "; copies are kept in one part."
        yield f"{count(more, 'row')} {repeat} another one exactly{ending}"
    test = parts.test
    if test.times is not None:
        yield (
            f"The test part holds the newest {count(len(test), 'row')}: from {time_text(test.times.min())} on in "
            f"{order.time!r}. This column is not an input. Folds of the other rows are drawn at random."
        )
    if few := [name for name, rows in parts.train.classes.items() if rows < 5]:
        yield f"Classes with fewer than 5 training rows are hardly learned: {listed(few)}."


def _overlaps(parts: TableParts, order: Order) -> Iterator[str]:
    """A note on test groups that are also in training, which are an error unless they are accepted.

    Parts that were drawn at random have none.
    """
    if order.groups is None:
        return
    for part in (parts.val, parts.test):
        if part is not None and part.groups is None:
            yield (
                f"{part.file} has no column {order.groups!r}, so it is not known whether its groups are also in "
                "training."
            )
    learned, groups = _group_names(parts.train, parts.val), _group_names(parts.test)
    if shared := groups & learned:
        overlap = (
            f"{len(shared):,} of {count(len(groups), 'group')} ({order.groups!r}) of the test part are in training too"
        )
        if not order.test_overlap:
            raise ValueError(
                f"{overlap}, so the test would not show how good predictions are for new groups. Remove the rows of "
                "these groups from one part, or accept them with --test-overlap."
            )
        yield f"{overlap}: its scores hold for known groups, and may be too good for new ones."


def _group_names(*parts: Labelled | None) -> set[str]:
    names = (name for part in parts if part is not None and part.groups is not None for name in part.groups.tolist())
    return {name for name in names if not name.startswith(ALONE)}


def _copied(parts: TableParts, order: Order) -> Iterator[str]:
    """A note on test rows that are copies of training rows; rows that are drawn have none."""
    train, test = parts.train, parts.test
    if order.time is None and isinstance(order.test, float):
        return
    copies = copy_groups(need_pandas().concat([train.frame, test.frame], ignore_index=True))
    if copies is not None and (number := int(np.isin(copies[len(train) :], copies[: len(train)]).sum())):
        yield (
            f"{number:,} of {count(len(test), 'test row')} are exact copies of training rows, so the scores may be too "
            "good."
        )

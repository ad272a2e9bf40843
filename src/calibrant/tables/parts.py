"""The division of a table into rows for training, validation and testing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibrant.base.words import count, listed
from calibrant.data.columns.parquet import need_pandas
from calibrant.data.splits.exact_copies import copy_groups, joined
from calibrant.estimators.reading import hold_out
from calibrant.tables.reading import ALONE, Labelled, check_classes, need_column, read_labelled, time_text

FEWEST_ROWS = 10
FEWEST_TEST_ROWS = 2
TEST_SHARE = 0.2
FROM_TRAIN, FROM_VAL = 0.2, 1 / 3
"""The share of validation or training rows that is set aside to choose a rejection rule without out-of-fold rows."""


@dataclass(frozen=True)
class TableParts:
    """The rows of each part; ``val`` if requested, ``aside`` if the rejection rule needs separate rows."""

    train: Labelled
    val: Labelled | None
    test: Labelled
    notes: tuple[str, ...] = ()
    aside: Labelled | None = None

    @property
    def each(self) -> dict[str, Labelled | None]:
        """The parts by name."""
        return {"train": self.train, "val": self.val, "aside": self.aside, "test": self.test}


def share_or_file(value: str, option: str) -> float | Path:
    """Read an option that is a share of the rows or a file."""
    try:
        share = float(value)
    except ValueError:
        return Path(value)
    if not 0 < share < 1:
        raise ValueError(f"{option} must be a file or a share of the rows between 0 and 1, such as 0.2; got {value}.")
    return share


def divide(
    table: Labelled,
    *,
    val: float | Path | None = None,
    test: float | Path = TEST_SHARE,
    seed: int = 0,
    test_overlap: bool = False,
    aside: bool = False,
) -> TableParts:
    """Divide a table, by time if it has times, else stratified by class with groups and copies of a row in one part.

    Groups of the test part that are also in other parts, as a file or a time can have them, are an error without
    ``test_overlap``. ``aside`` sets rows aside to choose the rejection rule: validation rows, whose labels are trusted,
    else training rows.
    """
    if test_overlap and "groups" not in table.roles:
        raise ValueError("--test-overlap must come with --groups, whose overlap it accepts; got no --groups.")
    if len(table) < FEWEST_ROWS:
        raise ValueError(
            f"{table.file} must have at least {FEWEST_ROWS} rows with a label, and some hundreds to be of use; got "
            f"{len(table)}."
        )
    shares = [share for share in (test, val) if isinstance(share, float)]
    if sum(shares) >= 1:
        raise ValueError(f"--test and --val together must leave rows to train on; got {sum(shares):g} of the rows.")
    if table.times is not None and not isinstance(test, float):
        raise ValueError(
            f"--time takes the test rows from the table, so --test must be a share of its rows, such as 0.2; got "
            f"{test}. Leave one of the two out."
        )
    copies = copy_groups(table.frame(list(table.columns)))
    together = joined(None if table.groups is None else np.unique(table.groups, return_inverse=True)[1], copies)
    codes = np.unique(table.labels, return_inverse=True)[1]
    rows_left = np.arange(len(table))
    held_out: dict[str, Labelled | None] = {"test": None, "val": None}
    for name, part in (("test", test), ("val", val)):
        if isinstance(part, float):
            share = part * len(table) / len(rows_left)
            if table.times is None:
                remaining, selected = set_apart(codes[rows_left], share, seed, _take(together, rows_left))
            else:
                remaining, selected = _newest(table.times[rows_left], share, table)
            held_out[name], rows_left = table.take(rows_left[selected]), rows_left[remaining]
        elif part is not None:
            held_out[name] = _from_file(part, table)
    train, test_rows = table.take(rows_left), held_out["test"]
    assert test_rows is not None
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
    if len(test_rows) < FEWEST_TEST_ROWS:
        raise ValueError(
            f"The test part has {count(len(test_rows), 'row')}; at least {FEWEST_TEST_ROWS} are needed to judge the "
            "classifier. Give a larger --test, or more rows"
            + (", or another --seed: groups are never divided." if train.groups is not None else ".")
        )
    notes = [*_notes(table, copies, train, held_out), *_overlaps(train, held_out, test_overlap)]
    if table.times is not None or not isinstance(test, float):
        notes += _copied(train, test_rows)
    by_share = {name: share for name, share in (("test", test), ("val", val)) if isinstance(share, float)}
    parts = TableParts(train, held_out["val"], test_rows, (*notes, *_uneven(table, held_out, by_share)))
    return _with_aside(parts, seed) if aside else parts


def _with_aside(parts: TableParts, seed: int) -> TableParts:
    source = parts.train if parts.val is None else parts.val
    codes = np.unique(source.labels, return_inverse=True)[1]
    groups = None if source.groups is None else np.unique(source.groups, return_inverse=True)[1]
    one_group = groups is not None and groups.max() < 1
    if len(source) < 4 or one_group:
        raise ValueError(
            f"{count(len(source), 'row')} of {source.file}{' in one group' if one_group else ''} are too few to set "
            "some aside for choosing when to withhold predictions; give more rows."
        )
    remaining, selected = set_apart(codes, FROM_TRAIN if parts.val is None else FROM_VAL, seed, groups)
    reduced, aside = source.take(remaining), source.take(selected)
    if parts.val is None:
        return replace(parts, train=reduced, aside=aside)
    return replace(parts, val=reduced, aside=aside)


def set_apart(codes: np.ndarray, share: float, seed: int, together: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to keep and the rows to hold out; every class is among the kept rows."""
    remaining, selected = hold_out(codes, share, seed=seed, groups=together)
    lacking = np.isin(codes[selected], np.setdiff1d(codes, codes[remaining]))
    if together is not None:
        lacking = np.isin(together[selected], together[selected[lacking]])
    return np.sort(np.concatenate([remaining, selected[lacking]])), selected[~lacking]


def _newest(times: np.ndarray, share: float, table: Labelled) -> tuple[np.ndarray, np.ndarray]:
    """Return the older rows, and about a share of newest ones; rows of one time stay together."""
    values, counts = np.unique(times, return_counts=True)
    if len(values) < 2:
        raise ValueError(
            f"The rows of {table.file} cannot be divided by {table.roles['time']!r}, because all have the same value. "
            "Name another column, or leave --time out."
        )
    rows_from = np.cumsum(counts[::-1])[::-1]
    first = values[1:][np.abs(rows_from[1:] - share * len(times)).argmin()]
    return np.flatnonzero(times < first), np.flatnonzero(times >= first)


def _overlaps(train: Labelled, parts: Mapping[str, Labelled | None], accepted: bool) -> Iterator[str]:
    """Notes on groups that are in several parts; for test groups an error unless they are ``accepted``.

    Parts that were drawn at random have none.
    """
    column = train.roles.get("groups")
    if column is None:
        return
    learned = _group_names(train)
    for name in ("val", "test"):
        part = parts[name]
        if part is None:
            continue
        if part.groups is None:
            yield f"{part.file} has no column {column!r}, so it is not known whether its groups are also in training."
            continue
        groups = _group_names(part)
        if shared := groups & learned:
            overlap = (
                f"{len(shared):,} of {count(len(groups), 'group')} ({column!r}) of the {name} part are in training too"
            )
            if name == "test" and not accepted:
                raise ValueError(
                    f"{overlap}, so the test would not show how good predictions are for new groups. Remove the rows "
                    "of these groups from one part, or accept them with --test-overlap."
                )
            yield f"{overlap}: its scores hold for known groups, and may be too good for new ones."
        learned |= groups


def _group_names(part: Labelled) -> set[str]:
    names = [] if part.groups is None else part.groups.tolist()
    return {name for name in names if not name.startswith(ALONE)}


def _copied(train: Labelled, test: Labelled) -> Iterator[str]:
    """A note on test rows that are copies of training rows."""
    names = list(train.columns)
    all_rows = need_pandas().concat([train.frame(names), test.frame(names)], ignore_index=True)
    if (copies := copy_groups(all_rows)) is None:
        return
    if number := int(np.isin(copies[len(train) :], copies[: len(train)]).sum()):
        yield (
            f"{number:,} of {count(len(test), 'test row')} are exact copies of training rows, so the scores may be too "
            "good."
        )


def _take(groups: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if groups is None or len(np.unique(groups[rows])) < 2 else groups[rows]


def _from_file(path: Path, table: Labelled) -> Labelled:
    """Read the labelled rows of another file, which must have the columns and classes of the table."""
    groups, weight = table.roles.get("groups"), table.roles.get("weight")
    part = read_labelled(path, table.target, groups=groups, weight=weight, like=table)
    for name in table.columns:
        need_column(part.columns, name, part.file)
    names = {str(value): value for value in np.unique(table.labels).tolist()}
    unknown = [name for name in part.classes if name not in names]
    if unknown:
        raise ValueError(
            f"{part.file} holds the class {unknown[0]!r} in {table.target!r}, which {table.file} does not have; its "
            f"classes are {listed(names)}. Correct it, or remove these rows."
        )
    labels = np.array([names[str(value)] for value in part.labels.tolist()], dtype=table.labels.dtype)
    columns = {name: part.columns[name] for name in table.columns}
    return replace(part, columns=columns, labels=labels)


def _notes(
    table: Labelled, copies: np.ndarray | None, train: Labelled, parts: Mapping[str, Labelled | None]
) -> list[str]:
    notes = list(dict.fromkeys(note for part in (table, *parts.values()) if part is not None for note in part.remarks))
    if table.unlabelled:
        notes.append(f"{count(table.unlabelled, 'row')} without a value in {table.target!r}: left out.")
    if copies is not None:
        more = len(copies) - len(np.unique(copies))
        repeat = "repeats" if more == 1 else "repeat"
        ending = "." if table.times is not None else "; copies are kept in one part."
        notes.append(f"{count(more, 'row')} {repeat} another one exactly{ending}")
    test = parts["test"]
    if test is not None and test.times is not None:
        notes.append(
            f"The test part holds the newest {count(len(test), 'row')}: from {time_text(test.times.min())} on in "
            f"{test.roles['time']!r}. This column is not an input. Folds of the other rows are drawn at random."
        )
    few = [name for name, rows in train.classes.items() if rows < 5]
    if few:
        notes.append(f"Classes with fewer than 5 training rows are hardly learned: {listed(few)}.")
    return notes


def _uneven(table: Labelled, parts: Mapping[str, Labelled | None], shares: Mapping[str, float]) -> Iterator[str]:
    """Notes on parts that lack classes, or whose size is far from the share that was asked for."""
    reason, repair_share = "copies of a row stay together", "Try another --seed, or give a file as --{}."
    if table.times is not None:
        reason, repair_share = "rows of one time stay together", "Try another share."
    elif table.groups is not None:
        reason = f"groups are never divided, and there are only {len(np.unique(table.groups))}"
    for name, part in parts.items():
        if part is None:
            continue
        expected_rows = shares.get(name, 0) * len(table)
        repair = repair_share.format(name) if expected_rows else "Add rows of other classes to it."
        if expected_rows and not 0.5 <= len(part) / expected_rows <= 2:
            size = f"{count(len(part), 'row')} of {len(table):,}, not about {expected_rows:.0f}"
            yield f"The {name} part has {size}, because {reason}. {repair}"
        lacking = [label for label in table.classes if label not in part.classes]
        if len(part.classes) == 1:
            only = f"one class only, {next(iter(part.classes))!r}"
            yield f"The {name} part has {only}, so it cannot show how well classes are told apart. {repair}"
        elif lacking and expected_rows and table.groups is not None:
            yield f"The {name} part has no row of {listed(lacking)}. {repair}"

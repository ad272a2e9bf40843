"""A folder of tables as training tasks: files by name, stratified 60/20/20 splits by seed, and records of scores."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.base.labels import class_columns
from calibrant.data import TableEncoder, read_columns, split_indices
from calibrant.methods import Samples, Task
from studies.common.records import ClassifierOutput, on_sample, short

ENDINGS = (".csv", ".tsv", ".parquet", ".pq")
_ENDING = re.compile(rf"({'|'.join(map(re.escape, ENDINGS))})(\.gz)?$", re.I)
SIZES = (0.6, 0.2, 0.2)
FLOOR = 1e-6
"""Smaller probabilities are raised to this value before the logarithm of NLL, for all methods: isotonic regression
gives exact zeros, and one wrong zero would make a method's mean infinite. `clipped` says how many samples changed."""
DEVELOPMENT = frozenset({"adult", "credit_g", "heart_statlog", "letter", "magic", "pima", "satimage", "vehicle"})
"""Tables on which settings of self-calibrated were tried during development, at seeds that are not reported. A table is
one fixed sample, so rows of those splits occur in the reported ones. The report therefore shows the other tables
separately."""
SCORES = ("accuracy", "nll", "nll_new", "smooth_ece", "ece15", "floor_self15", "brier", "aurc", "clipped")
"""The measured fields of a record. ``nll_new`` is the NLL on test rows without an exact copy in the training rows; None
if there are none."""


@dataclass(frozen=True)
class TableFile:
    """A table whose labels are in a named column."""

    path: Path
    target: str


Source = Path | TableFile
"""A table: its file, with the name of the label column if it is none of ``TARGETS``."""
TARGETS = ("target", "class", "label", "y")
"""Usual names of the label column, in lower case."""


class LabelledTable(NamedTuple):
    """Named columns and the labels of the rows."""

    columns: dict[str, np.ndarray]
    labels: np.ndarray


@dataclass(frozen=True)
class Split:
    """One table at one seed: the task (training and validation part) and the test part, all encoded."""

    table: str
    seed: int
    task: Task
    inputs: Tensor
    labels: np.ndarray
    notes: tuple[str, ...] = ()
    """The encoder's notes on the columns, including the dropped ones."""

    def pooled(self) -> tuple[np.ndarray, np.ndarray]:
        """Return training and validation part together, for methods that hold out their own part."""
        assert self.task.val is not None
        both = self.task.train + self.task.val
        return both.inputs.numpy(), both.labels.numpy()

    def copied(self) -> np.ndarray:
        """Whether each row of the test part has an exact copy in the training or validation part."""
        parts = [part.inputs.numpy() for part in (self.task.train, self.task.val) if part is not None]
        training_rows = {row.tobytes() for part in parts for row in np.ascontiguousarray(part)}
        return np.array([row.tobytes() in training_rows for row in np.ascontiguousarray(self.inputs.numpy())])

    def record(
        self, method: str, output: ClassifierOutput | None, failure: str | None = None, **cost: Any
    ) -> dict[str, Any]:
        """Return the scores on the test part, as one row of a result file; without predictions they are None."""
        copied = self.copied()
        scores = dict.fromkeys(SCORES) if output is None else score(output, self.labels, ~copied)
        about = {"table": self.table, "method": method, "seed": self.seed, "copied": float(copied.mean())}
        return {**about, **scores, "failure": failure, **cost}


def find_tables(folder: Path, only: Sequence[str] | None = None) -> dict[str, Path]:
    """Return the tables of a folder by name (the file's name without its suffixes), in alphabetical order.

    The folder can also be a single file.
    """
    if folder.is_file() and only is None:
        return {_ENDING.sub("", folder.name): folder}
    if not folder.is_dir():
        raise FileNotFoundError(f"data must name a folder of tables; got {folder}, which does not exist.")
    files = sorted(p for p in folder.iterdir() if p.name.lower().removesuffix(".gz").endswith(ENDINGS))
    tables: dict[str, Path] = {}
    for path in files:
        if (name := _ENDING.sub("", path.name)) in tables:
            raise ValueError(f"{tables[name].name} and {path.name} would both be the table {name!r}; rename one.")
        tables[name] = path
    if not tables:
        raise ValueError(
            f"{folder} holds no tables. Give a folder of files whose names end in {', '.join(ENDINGS)}, optionally "
            "with .gz."
        )
    if unknown := [name for name in only or () if name not in tables]:
        raise ValueError(f"only must name tables in {folder}, among {', '.join(tables)}; got {', '.join(unknown)}.")
    return {name: path for name, path in tables.items() if only is None or name in only}


def path_of(source: Source) -> Path:
    """Return the file of a table."""
    return source.path if isinstance(source, TableFile) else source


def read(source: Source) -> LabelledTable:
    """Return a table; the last ones are cached until the file changes, because every seed uses them."""
    return _read(source, path_of(source).stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _read(source: Source, _changed: int) -> LabelledTable:
    columns = read_columns(path_of(source))
    by_lower = {name.lower(): name for name in columns}
    usual = next((by_lower[name] for name in TARGETS if name in by_lower), "")
    target = source.target if isinstance(source, TableFile) else usual
    if target not in columns:
        raise ValueError(
            f"{path_of(source).name} has no column called {target or ', '.join(TARGETS)}; name the one that holds the "
            f"labels. Its columns are {', '.join(columns)}."
        )
    labels = columns.pop(target)
    if absent := sum(label is None or label != label for label in labels.tolist()):
        name = path_of(source).name
        raise ValueError(f"{name}: {absent} of the {len(labels)} labels in {target!r} are missing. Remove these rows.")
    return LabelledTable(columns, labels)


def describe(source: Source) -> dict[str, Any]:
    """Return a result file's entry about a table; `sha256` tells later runs whether the table changed."""
    table, path = read(source), path_of(source)
    classes = np.unique(table.labels)
    if len(classes) < 2:
        raise ValueError(f"{path.name} must hold at least two classes; got only {classes[0]!s}.")
    named = source.target.encode() if isinstance(source, TableFile) else b""
    digest = hashlib.sha256(path.read_bytes() + named).hexdigest()[:16]
    return {
        "rows": len(table.labels),
        "columns": len(table.columns),
        "classes": len(classes),
        "sha256": digest,
    }


def prepare(name: str, source: Source, seed: int) -> Split:
    """Split a table by seed, stratified by class, and encode all parts by an encoder fitted to the training part.

    The last splits are cached until the file changes, because every method uses them.
    """
    path = path_of(source)
    try:
        return _prepare(name, source, path.stat().st_mtime_ns, seed)
    except ValueError as error:
        message = str(error)
        raise ValueError(message if path.name in message else f"{path.name}: {message}") from None


@lru_cache(maxsize=10)
def _prepare(name: str, source: Source, changed: int, seed: int) -> Split:
    table = _read(source, changed)
    parts = split_indices(len(table.labels), SIZES, seed=seed, stratify=table.labels)
    train, val, test = (
        LabelledTable({name: column[rows] for name, column in table.columns.items()}, table.labels[rows])
        for rows in parts
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # notes on columns, which every seed would repeat
        encoder = TableEncoder().fit(train.columns)
    classes = np.unique(train.labels)

    def part(rows: LabelledTable) -> Samples:
        labels = class_columns(rows.labels, classes)
        return Samples(torch.as_tensor(encoder.transform(rows.columns)), torch.as_tensor(labels))

    task, held = Task(part(train), part(val), len(classes), seed), part(test)
    return Split(name, seed, task, held.inputs, held.labels.numpy(), _notes(encoder))


def _notes(encoder: TableEncoder) -> tuple[str, ...]:
    """Return the encoder's notes, and one for each other reason to drop columns."""
    reasons: dict[str, list[str]] = {}
    for column, why in encoder.dropped_.items():
        if not any(note.startswith(f"Column {column!r} is left out") for note in encoder.notes_):
            reasons.setdefault(why, []).append(repr(column))
    return (*encoder.notes_, *(f"Left out as {why}: {', '.join(names)}." for why, names in reasons.items()))


@dataclass(frozen=True)
class Examined:
    """The tables that can be split, encoded and learned from, and the reason for each of the others."""

    tables: dict[str, dict[str, Any]]
    notes: dict[str, list[str]]
    unsuitable: dict[str, str]


def examine(tables: Mapping[str, Source], seeds: Sequence[int]) -> Examined:
    """Describe every table and prepare all of its splits once, so that none can stop a long run later.

    The notes are those of the first split; those of other splits differ only in some numbers.
    """
    examined = Examined({}, {}, {})
    for name, source in tables.items():
        try:
            description = describe(source)
            splits = [prepare(name, source, seed) for seed in seeds]
        except ValueError as error:
            examined.unsuitable[name] = str(error)
            continue
        examined.tables[name] = description
        if splits and splits[0].notes:
            examined.notes[name] = list(splits[0].notes)
    if not examined.tables:
        raise ValueError(f"{' '.join(examined.unsuitable.values())} No table can be used; give others.")
    return examined


def score(output: ClassifierOutput, labels: np.ndarray, new: np.ndarray) -> dict[str, float | None]:
    """Return the fields of ``SCORES``; NLL after raising probabilities to ``FLOOR`` and dividing by their sum.

    ``new`` marks the rows without a copy in the training rows.
    """
    values = on_sample(output, labels, least=FLOOR)
    true_class = output.probs[np.arange(len(labels)), labels]
    raised = true_class.clip(FLOOR) / output.probs.clip(FLOOR).sum(1)
    values["nll_new"] = -np.log(raised[new]).mean() if new.any() else None
    values["clipped"] = (true_class < FLOOR).mean()
    return {name: short(values[name]) for name in SCORES}

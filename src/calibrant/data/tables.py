"""Readers for a user's table: CSV, TSV and Parquet, packed with gzip or not."""

from __future__ import annotations

import gzip
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.data.columns import Columns, as_columns
from calibrant.data.labels import as_labels

TARGET_NAMES = ("target", "class", "label", "y")
_MISSING = ["?"]  # beside what pandas takes for missing: empty, NA, NaN, null, None and the like


@dataclass(frozen=True)
class Table:
    """Named columns and the labels of the rows: numbers, text or truth values."""

    columns: Columns
    labels: np.ndarray
    target: str

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, index: np.ndarray) -> Table:
        """The rows of an index or mask, in its order."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return Table(columns, self.labels[index], self.target)


def read_table(path: str | os.PathLike[str], *, target: str | None = None) -> Table:
    """A table with labels from a ``.csv``, ``.tsv`` or ``.parquet`` file, or one of these with ``.gz`` at the end.

    ``target`` names the column of the labels; by default the one called target, class, label or y (in any case, the
    first of these that there is). Labels must not be missing; other values may.
    """
    columns = read_columns(path)
    name = target if target is not None else _find_target(columns)
    if name is None or name not in columns:
        which = f"called {target!r}" if target is not None else f"called {', '.join(TARGET_NAMES[:-1])} or y"
        raise ValueError(
            f"{Path(path).name} has no column {which}; say which one holds the labels (target=…). "
            f"Its columns are {', '.join(columns)}."
        )
    labels = as_labels(columns.pop(name), name=name)
    if not columns:
        raise ValueError(f"{Path(path).name} has no column beside {name!r}, and so nothing to learn from.")
    return Table(columns, labels, name)


def read_columns(path: str | os.PathLike[str]) -> Columns:
    """All columns of a file, labelled or not, by name. A first column without a name that counts rows is left out."""
    frame = _read_frame(Path(path))
    if not len(frame):
        raise ValueError(f"{Path(path).name} holds no rows.")
    columns = as_columns(frame)
    first = next(iter(columns))
    if first in ("Unnamed: 0", "__index_level_0__", "") and columns[first].dtype.kind in "iu":
        steps = np.diff(columns[first])
        if np.all(steps == 1) and len(columns) > 1:
            del columns[first]
    return columns


def _read_frame(path: Path) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("Reading tables needs pandas: pip install 'calibrant[tables]'.") from None
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    suffixes = [s.lower() for s in path.suffixes]
    packed = suffixes[-1:] == [".gz"]
    kind = (suffixes[:-1] if packed else suffixes)[-1:]
    try:
        content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    except (gzip.BadGzipFile, EOFError):
        raise ValueError(f"{path.name} ends in .gz, and is no whole gzip file.") from None
    if kind in ([".parquet"], [".pq"]):
        try:
            return pd.read_parquet(io.BytesIO(content))
        except ImportError:
            raise ImportError("Reading Parquet files needs pyarrow: pip install 'calibrant[tables]'.") from None
    if kind not in ([".csv"], [".tsv"]):
        raise ValueError(f"{path.name} should end in .csv, .tsv or .parquet (with .gz or without), to say what it is.")
    try:
        separator = "\t" if kind == [".tsv"] else _separator(content)
        text = io.BytesIO(content)
        return pd.read_csv(text, sep=separator, na_values=_MISSING, encoding="utf-8-sig", low_memory=False)
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not text in UTF-8; save it in that encoding.") from None
    except (pd.errors.EmptyDataError, pd.errors.ParserError) as error:
        raise ValueError(f"{path.name} could not be read as a table: {str(error).strip()}.") from None


def _separator(content: bytes) -> str:
    """A comma, or the semicolon where the header has none of the one and some of the other."""
    header = content.partition(b"\n")[0]
    return ";" if b";" in header and b"," not in header else ","


def _find_target(columns: Columns) -> str | None:
    by_lower = {name.lower(): name for name in reversed(columns)}
    return next((by_lower[name] for name in TARGET_NAMES if name in by_lower), None)

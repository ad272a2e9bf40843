"""Writing tables to CSV, TSV and Parquet files, some rows at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from calibrant.base.atomic_write import whole_file
from calibrant.data.columns.parquet import Put, need_pandas, parquet_writer

DIGITS = "%.9g"
"""The format of numbers in files: exact enough for every score, and short enough to read."""
FORMATS = (".csv", ".tsv", ".parquet")


@contextmanager
def table_writer(out: str | os.PathLike[str] | TextIO) -> Iterator[Put]:
    """A function that appends rows to a file, which appears whole or not at all, or to an open text stream."""
    if not isinstance(out, str | os.PathLike):
        yield _csv(out, ",")
        return
    suffix = Path(out).suffix.lower()
    if suffix not in FORMATS and (Path(out).is_file() or not Path(out).exists()):
        raise ValueError(f"The output file must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}; got {out}.")
    with whole_file(out) as unfinished:
        if suffix == ".parquet":
            with parquet_writer(unfinished) as put:
                yield put
        else:
            with unfinished.open("w", encoding="utf-8", newline="") as stream:
                yield _csv(stream, "\t" if suffix == ".tsv" else ",")


def _csv(stream: TextIO, separator: str) -> Put:
    pd, header = need_pandas(), True

    def put(columns: dict[str, Any]) -> None:
        nonlocal header
        frame = pd.DataFrame(columns)
        frame.to_csv(stream, index=False, header=header, sep=separator, float_format=DIGITS, lineterminator="\n")
        header = False

    return put

"""Reading a table in pieces, so that it can be larger than memory."""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from calibrant.data.columns import Columns
from calibrant.data.number_reader import NumberReader
from calibrant.data.tables import check_file, file_kind, find_encoding, frame_columns, read_typed
from calibrant.data.text_encodings import UTF8
from calibrant.data.text_tables import need_pyarrow, read_text, separator


def read_chunks(
    path: str | os.PathLike[str],
    rows: int,
    *,
    text: Collection[str] = (),
    reader: NumberReader | None = None,
) -> Iterator[Columns]:
    """The columns of a ``.csv``, ``.tsv`` or ``.parquet`` file (also with ``.gz``), ``rows`` rows at a time.

    Each piece is read like a separate file, so the type of a column may differ between pieces. For example, a column of
    codes is read as numbers if a piece holds only numbers. ``text`` names columns that are text in every piece.
    ``reader`` knows how numbers were written in a training table, and collects notes where this file differs.
    """
    if rows < 1:
        raise ValueError(f"The number of rows in a piece must be at least 1; got {rows}.")
    path = Path(path)
    check_file(path)
    kind, packed = file_kind(path)
    found = False
    if kind == ".parquet":
        known = reader or NumberReader(path.name)
        frames: Iterator[Any] = (read_typed(frame, known, text) for frame in _parquet(path, rows, packed))
    else:
        frames = _text(path, rows, kind, packed, text, reader)
    for frame in frames:
        found = True
        yield frame_columns(frame, path.name)
    if not found:
        raise ValueError(f"{path.name} holds no rows; give a table with a header and rows below it.")


def _parquet(path: Path, rows: int, packed: bool) -> Iterator[Any]:
    pyarrow = need_pyarrow()
    try:
        source: Any = io.BytesIO(gzip.decompress(path.read_bytes())) if packed else path
        with pyarrow.parquet.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=rows):
                if batch.num_rows:
                    yield batch.to_pandas()
    except (pyarrow.ArrowException, gzip.BadGzipFile, EOFError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(
            f"{path.name} could not be read as a Parquet file: {reason}. Write it again, or give another file."
        ) from None


def _text(
    path: Path, rows: int, kind: str, packed: bool, text: Collection[str], reader: NumberReader | None
) -> Iterator[Any]:
    def open_file() -> Any:
        return gzip.open(path, "rb") if packed else path.open("rb")

    try:
        # A pipe can be read only once.
        encoding = find_encoding(path.name, open_file, reader) if path.is_file() else UTF8
        with io.TextIOWrapper(open_file(), encoding=encoding, newline="") as lines:
            yield from _frames(lines, rows, kind, text, reader or NumberReader(path.name))
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not text in UTF-8; save it in that encoding (in Excel: CSV UTF-8).") from None
    except (gzip.BadGzipFile, EOFError):
        raise ValueError(f"{path.name} ends in .gz, but it is not a complete gzip file. Compress it again.") from None


def _frames(lines: Iterator[str], rows: int, kind: str, text: Collection[str], reader: NumberReader) -> Iterator[Any]:
    """Data frames of at most ``rows`` rows, each read with the header of the file."""
    records = _Records(reader.file, lines)
    header = next((record for record in records if record.strip()), "")
    mark = "\t" if kind == ".tsv" else separator(header.encode())
    records.delimiter = mark
    while True:
        before, piece = records.line, [header]
        for record in records:
            piece.append(record)
            if len(piece) > rows:
                break
        if not any(record.strip() for record in piece[1:]):
            if len(piece) == 1:
                return
            continue
        ahead = header.count("\n") or header.count("\r")
        yield read_text(reader.file, "".join(piece).encode(), mark, text=text, reader=reader, line=before - ahead)


class _Records:
    """The records of a text: one line each, or several where a quoted value has line breaks."""

    def __init__(self, file: str, lines: Iterator[str]) -> None:
        self.file, self.lines, self.line = file, lines, 0
        self.delimiter = ","
        self._taken: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self._taken.clear()
        try:
            next(csv.reader(self._noted(), delimiter=self.delimiter), None)
        except csv.Error as error:
            raise ValueError(
                f"{self.file} could not be read as a table: {error} in line {self.line}. Check that every quotation "
                "mark is closed."
            ) from None
        if not self._taken:
            raise StopIteration
        return "".join(self._taken)

    def _noted(self) -> Iterator[str]:
        for line in self.lines:
            self._taken.append(line)
            self.line += 1
            yield line

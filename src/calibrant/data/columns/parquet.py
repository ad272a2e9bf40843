"""Parquet files: reading some rows at a time, and writing."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.data.columns.forms import as_columns
from calibrant.data.columns.values import Columns, each, is_missing, objects

Put = Callable[[dict[str, Any]], None]


def need_pandas() -> Any:
    """The module pandas, or an error that says how to install it."""
    try:
        import pandas
    except ImportError:
        raise ImportError("Reading tables needs pandas. Install it with: pip install 'calibrant[tables]'.") from None
    return pandas


def parquet_pieces(path: Path, rows: int, packed: bool) -> Iterator[Columns]:
    """The columns of a Parquet file with their types; missing texts and question marks are None."""
    pyarrow = _need_pyarrow()
    try:
        source: Any = io.BytesIO(gzip.decompress(path.read_bytes())) if packed else path
        with pyarrow.parquet.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=rows):
                if batch.num_rows:
                    yield _columns(batch.to_pandas(), path.name)
    except (pyarrow.ArrowException, gzip.BadGzipFile, EOFError, OSError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(
            f"{path.name} could not be read as a Parquet file: {reason}. Write it again, or give another file."
        ) from None


@contextmanager
def parquet_writer(path: Path) -> Iterator[Put]:
    """A function that appends rows to a Parquet file."""
    pyarrow, pd, writer = _need_pyarrow(), need_pandas(), None
    with ExitStack() as stack:

        def put(columns: dict[str, Any]) -> None:
            nonlocal writer
            table = pyarrow.Table.from_pandas(pd.DataFrame(columns), preserve_index=False)
            if writer is None:
                writer = stack.enter_context(pyarrow.parquet.ParquetWriter(path, table.schema))
            writer.write_table(table.cast(writer.schema))  # a copied column can have another type in a later piece

        yield put


def _columns(frame: Any, file: str) -> Columns:
    frame.columns = [str(name).strip() for name in frame.columns]
    try:
        columns = as_columns(frame)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return {name: _without_marks(column) if column.dtype.kind == "O" else column for name, column in columns.items()}


def _without_marks(column: np.ndarray) -> np.ndarray:
    return objects(each(lambda v: None if is_missing(v) or (isinstance(v, str) and v.strip() == "?") else v, column))


def _need_pyarrow() -> Any:
    """The module pyarrow with its submodule parquet, or an error that says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError("Parquet files need pyarrow. Install it with: pip install 'calibrant[tables]'.") from None
    return pyarrow

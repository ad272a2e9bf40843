"""Reading files of predictions and of labels as named columns: tables, npz archives and single npy arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrant.data.columns import Notation
from calibrant.data.columns.read import check_table_file, read_formatted

ARRAYS = (".npz", ".npy")


def first_row(path: Path) -> int:
    """The number of the first row of a file: 1 below a header, 0 in arrays."""
    return 0 if path.suffix.lower() in ARRAYS else 1


def read_file(path: Path, notation: Notation) -> dict[str, np.ndarray]:
    """The columns of a file of predictions by name; ``notation`` says how a text file is written.

    The array of an npy file is called ``probs``, or ``logits`` if the file's name contains "logit".
    """
    check_table_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _read_npz(path)
    if suffix == ".npy":
        return {"logits" if "logit" in path.stem.lower() else "probs": _read_npy(path)}
    try:
        return read_formatted(path, notation).columns
    except ValueError as error:
        if not str(error).startswith("The file name must end in"):
            raise
        raise ValueError(
            "A file of predictions must end in .csv, .tsv, .parquet (optionally with .gz), .npz or .npy; got "
            f"{path.name}."
        ) from None


def read_label_file(path: Path, names: Sequence[str], notation: Notation) -> np.ndarray:
    """The labels in a file of their own: its one column or array, or the one that has one of these names."""
    if path.suffix.lower() == ".npy":
        check_table_file(path)
        return _one_dimension(_read_npy(path), path)
    table = read_file(path, notation)
    by_lower = {name.lower(): name for name in reversed(list(table))}
    column = next(iter(table)) if len(table) == 1 else next((by_lower[n] for n in names if n in by_lower), None)
    if column is None:
        raise ValueError(
            f"{path.name} must have one column with the true classes, or name it label; got {', '.join(table)}."
        )
    return _one_dimension(table[column], path)


def _one_dimension(labels: np.ndarray, path: Path) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(
            f"{path.name} must hold one class per row; got an array of shape {labels.shape}. For one-hot labels, save "
            "labels.argmax(axis=1)."
        )
    return labels


def _read_npy(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError):
        raise ValueError(f"{path.name} is not an npy file of a plain array; write it with np.save.") from None
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise ValueError(f"{path.name} must hold an array with one row per prediction; got a single value.")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return array


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile):
        raise ValueError(
            f"{path.name} is not an npz file of plain arrays; write it with np.savez(…, probs=…, labels=…)."
        ) from None
    if not arrays or any(array.ndim == 0 for array in arrays.values()):
        raise ValueError(
            f"{path.name} must hold arrays with one row per prediction, such as probs and labels; got "
            f"{', '.join(arrays) or 'none'}."
        )
    return arrays

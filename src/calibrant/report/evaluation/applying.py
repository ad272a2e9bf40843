"""Apply a fitted calibrator to a file of predictions, and write the result."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from calibrant.base.atomic_write import whole_file
from calibrant.data.columns.parquet import need_pandas
from calibrant.posthoc import Calibrator
from calibrant.report.evaluation.files import PredictionFile, prefixed_columns

FORMATS = (".csv", ".tsv", ".parquet", ".npz")


def apply_file(calibrator: Calibrator, file: PredictionFile, out: str | os.PathLike[str]) -> None:
    """Write the calibrated predictions of a file, whole or not at all."""
    suffix = Path(out).suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"out must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}; got {out}.")
    columns = calibrated_columns(calibrator, file)
    with whole_file(out) as unfinished:
        if suffix == ".npz":
            with zipfile.ZipFile(unfinished, "w") as archive:  # np.savez takes no array of the name "file"
                for name, column in columns.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                        plain = column.astype(str) if column.dtype == object else column  # objects would be pickled
                        np.lib.format.write_array(stream, plain, allow_pickle=False)
            return
        frame = need_pandas().DataFrame(columns)
        if suffix == ".parquet":
            frame.to_parquet(unfinished, index=False)
        else:
            frame.to_csv(unfinished, index=False, sep="\t" if suffix == ".tsv" else ",")


def calibrated_columns(calibrator: Calibrator, file: PredictionFile) -> dict[str, np.ndarray]:
    """The columns of the result: all columns of the file, then probabilities, class and confidence."""
    kind = getattr(calibrator, "kind_", None)
    if kind is not None and kind != file.kind:
        hint = " Use --logits if these are logits." if (file.kind, kind) in _UNMARKED else ""
        raise ValueError(
            f"{file.path.name} must hold {_KIND_NAMES[kind]}, like the file that the calibrator was fitted on; got "
            f"{_KIND_NAMES[file.kind]}.{hint}"
        )
    if file.kind == "pairs" and not calibrator.can_change_prediction:
        raise ValueError(
            f"{file.path.name} holds a confidence, which {type(calibrator).__name__} never moves across 1/2. Give "
            "class probabilities or logits, or fit another calibrator."
        )
    names = list(getattr(calibrator, "class_names_", ()))
    values = _in_order(file, names)
    probs = np.asarray(calibrator.predict_proba(values))
    if file.kind == "pairs":
        return _with_kept(file, {"confidence": probs[:, 1]})
    predicted = np.asarray(calibrator.predict(values))
    names = names or [str(k) for k in range(probs.shape[1])]
    columns = {f"prob_{name}": probs[:, k] for k, name in enumerate(names)}
    columns["predicted"] = np.array(names)[predicted]
    return _with_kept(file, columns | {"confidence": probs[np.arange(len(probs)), predicted]})


def _with_kept(file: PredictionFile, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns of the file, followed by calibrated ones; a matrix becomes one column for each of its columns.

    Columns that have the name of a calibrated one, or that `evaluate` could read in its place, get another name:
    ``confidence_raw``, ``predicted_raw`` and ``raw_prob_…``.
    """
    flat: dict[str, np.ndarray] = {}
    for name, column in file.table.items():
        parts = column.reshape(len(column), -1).T
        flat |= {name: column} if column.ndim == 1 else {f"{name}_{k}": part for k, part in enumerate(parts)}
    alike = prefixed_columns(flat)
    confusable = {name for start, group in alike.items() if len(group) > 1 or start == "prob" for name in group}
    result: dict[str, np.ndarray] = {}
    for name, column in flat.items():
        new = f"raw_{name}" if name in confusable else name
        while new.lower() in columns or (new != name and new in (flat.keys() | result.keys())):
            new += "_raw"
        result[new] = column
    return result | columns


def _in_order(file: PredictionFile, names: list[str]) -> np.ndarray:
    """The values, with their columns in the order of the fit."""
    if file.values.ndim == 1:
        return file.values
    if names and file.values.shape[1] != len(names):
        raise ValueError(
            f"{file.path.name} must have {len(names)} columns, one for each class of the calibrator; got "
            f"{file.values.shape[1]}."
        )
    classes = file.classes
    if classes is None or not names or set(classes) != set(names):
        if classes is not None and names and not all(name.isdigit() for name in names):
            raise ValueError(
                f"{file.path.name} must have columns for the classes {', '.join(names[:10])}, like the file that the "
                f"calibrator was fitted on; got {', '.join(classes[:10])}. Rename the columns, or fit again."
            )
        return file.values
    return file.values[:, [classes.index(name) for name in names]]


_KIND_NAMES = {
    "probs": "class probabilities",
    "logits": "logits of classes",
    "score": "one probability per row",
    "logit": "one logit per row",
    "pairs": "a confidence per row",
}
# Logits in columns that are not called so are read as probabilities, unless --logits is given.
_UNMARKED = (("probs", "logits"), ("score", "logit"))

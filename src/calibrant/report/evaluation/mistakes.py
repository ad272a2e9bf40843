"""The most confident mistakes, with information about their rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant.report.evaluation.reading import Sample

_LONGEST = 200


def check_rows(rows: Any, n: int) -> Any:
    """`rows` as a list with one entry per row, or as a table with named columns."""
    if rows is None:
        return None
    if hasattr(rows, "columns") and hasattr(rows, "iloc"):
        rows = {str(name): rows[name].to_numpy() for name in rows.columns}
    if isinstance(rows, Mapping):
        lengths = {len(column) for column in rows.values()}
        if lengths - {n}:
            raise ValueError(f"rows must have {n} rows, one per prediction; got {sorted(lengths)}.")
        return dict(rows)
    if len(rows) != n:
        raise ValueError(f"rows must have {n} entries, one per prediction; got {len(rows)}.")
    return list(rows)


def check_numbers(numbers: Any, n: int) -> np.ndarray | None:
    """The numbers of the rows as an array; None if they are counted from 0."""
    if numbers is None:
        return None
    array = np.asarray(numbers)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise ValueError(f"row_numbers must be {n} whole numbers, one per prediction; got {array.dtype} {array.shape}.")
    return array


def worst_mistakes(
    sample: Sample, rows: Any, most: int = 25, numbers: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """The wrong predictions with the highest confidence: row number, classes, confidence and values of the row."""
    wrong = np.flatnonzero(~sample.correct)
    worst = wrong[np.argsort(-sample.confidence[wrong], kind="stable")][:most]
    entries = []
    for i in worst.tolist():
        entry: dict[str, Any] = {
            "row": i if numbers is None else int(numbers[i]),
            "confidence": float(sample.confidence[i]),
        }
        if sample.labels is not None and sample.predicted is not None and sample.probs is not None:
            label = int(sample.labels[i])
            entry["predicted"] = sample.name_of(int(sample.predicted[i]))
            entry["label"] = sample.name_of(label)
            entry["probability_of_label"] = float(sample.probs[i, label])
        entries.append(entry | {"values": _values(rows, i)})
    return entries


def _values(rows: Any, i: int) -> dict[str, str]:
    if rows is None:
        return {}
    if isinstance(rows, dict):
        return {name: _short(column[i]) for name, column in rows.items()}
    row = rows[i]
    return {str(k): _short(v) for k, v in row.items()} if isinstance(row, Mapping) else {"row": _short(row)}


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"

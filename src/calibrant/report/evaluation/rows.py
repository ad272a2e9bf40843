"""The rows of the tables that are printed and shown on the page: measures, groups, differences, mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant.report.evaluation.numbers import Measure, ModelNumbers
from calibrant.report.evaluation.reading import Sample
from calibrant.report.numbers import format_signed

MOST_GROUPS = 20
"""Groups that are printed as text; the page and `to_dict` have more."""
_POINTS = ("accuracy", "ece", "smooth_ece", "mce", "classwise_ece")
"""Measures that are fractions and are shown in percentage points."""
_LONGEST = 200
"""Longer values of rows are cut off."""


def measure_rows(numbers: ModelNumbers) -> list[list[str]]:
    """The measures as text: a heading, then one row for each."""
    interval = f"{numbers.level:.0%} interval"
    rows = [["", "value", interval, "noise floor"]]
    for key, measure in numbers.measures.items():
        rows.append([measure.name, *_texts(key, measure)])
    return rows


def _texts(key: str, m: Measure) -> list[str]:
    def show(value: float | None) -> str:
        if value is None:
            return "–"
        return f"{100 * value:.2f} %" if key in _POINTS else f"{value:.4f}"

    interval = "–" if m.low is None or m.high is None else f"{show(m.low)} to {show(m.high)}"
    if key in _POINTS and (m.low, m.high) == (0, 1):
        interval = "cannot be told"
    return [show(m.value), interval, "–" if m.floor is None else show(m.floor)]


def group_rows(numbers: ModelNumbers) -> list[list[str]]:
    """The calibration of each group as text: a heading, then one row for each of the largest groups."""
    rows = [["group", "rows", "confidence", "accuracy", "difference, points", f"{numbers.level:.0%} interval"]]
    for group in numbers.groups[:MOST_GROUPS]:
        shares = [f"{100 * group[key]:.1f} %" for key in ("mean_confidence", "frequency")]
        gap, low, high = (points(group[key]) for key in ("gap", "gap_low", "gap_high"))
        rows.append([str(group["name"]), f"{group['n']:,}", *shares, gap, low if low == high else f"{low} to {high}"])
    if more := len(numbers.groups[MOST_GROUPS:]) + numbers.groups_left_out:
        rows.append([f"and {more:,} more", *[""] * 5])
    return rows


def difference_rows(entry: Mapping[str, Any]) -> list[list[str]]:
    """Paired differences as text."""
    rows = []
    for key, label in (("accuracy", "accuracy"), ("nll", "NLL"), ("brier", "Brier score"), ("ece", "ECE")):
        d = entry[key]
        if d["value"] is None:
            rows.append([label, "–", "–", "–"])
        else:
            p = "< 0.001" if d["p_value"] < 0.001 else f"{d['p_value']:.3f}"
            value, low, high = (format_signed(d[end], 4) for end in ("value", "low", "high"))
            rows.append([label, value, f"{low} to {high}", p])
    return rows


def points(difference: float | None) -> str:
    """A difference of fractions in percentage points, with its sign."""
    return format_signed(None if difference is None else 100 * difference)


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

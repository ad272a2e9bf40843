"""Cross-validated losses of several calibrators: the choice, and the table that explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.posthoc._base import Floats

RAW = "raw"

# From few parameters to many. Calibrators that are not listed count as the least simple.
_SIMPLEST_FIRST = (
    RAW,
    "temperature",
    "attended-temperature",
    "ensemble-temperature",
    "platt",
    "vector",
    "beta",
    "polynomial",
    "order-preserving-isotonic",
    "isotonic-confidence",
    "structured-matrix",
    "matrix",
    "dirichlet",
    "neural",
    "scaling-binning",
    "histogram",
    "bbq",
    "isotonic",
)


@dataclass(frozen=True)
class Row:
    """One candidate: its log-loss on each held-out row, or the reason why there is none."""

    name: str
    stages: tuple[str, ...]
    losses: Floats | None
    seconds: float
    note: str = ""
    scores: Floats | None = None
    """Log-probabilities of the held-out rows."""
    first_scores: Floats | None = None
    """Log-probabilities of the first stage, to which the second is fitted."""

    @property
    def usable(self) -> bool:
        return self.losses is not None and bool(np.isfinite(self.losses).all())

    def mean(self, weights: Floats) -> float:
        if self.losses is None or not self.usable:
            return np.inf
        return float(np.average(self.losses, weights=weights))


def choose(rows: Sequence[Row], weights: Floats, margin: float) -> Row:
    """The raw scores, unless a row is better by `margin` standard errors; then the simplest row near the best."""
    raw = rows[0]
    best = min(rows, key=lambda row: row.mean(weights))
    gain, error = difference(raw, best, weights)
    if best is raw or not gain > margin * error:
        return raw
    near = []
    for row in rows[1:]:
        if row.usable:
            excess, spread = difference(row, best, weights)
            gain, error = difference(raw, row, weights)
            if excess <= spread and gain > margin * error:
                near.append(row)
    return min(near, key=_simplicity)


def difference(a: Row, b: Row, weights: Floats) -> tuple[float, float]:
    """Mean loss of `a` minus that of `b`, and the standard error of this difference over the rows."""
    if not (a.usable and b.usable):
        return np.nan, np.nan
    assert a.losses is not None
    assert b.losses is not None
    gaps = a.losses - b.losses
    share = weights / weights.sum()
    mean = float(share @ gaps)
    return mean, float(np.sqrt((share**2) @ (gaps - mean) ** 2))


def table_rows(rows: Sequence[Row], weights: Floats, chosen: str) -> list[dict[str, Any]]:
    """The rows of `Auto.comparison_`: plain values, best first."""
    raw, table = rows[0], []
    for row in sorted(rows, key=lambda row: row.mean(weights)):
        gap, error = difference(row, raw, weights)
        entry: dict[str, Any] = {"name": row.name, "nll": None, "difference": None, "standard_error": None}
        if row.usable:
            entry |= {"nll": row.mean(weights), "difference": gap, "standard_error": error}
        table.append(entry | {"seconds": row.seconds, "chosen": row.name == chosen, "note": row.note})
    return table


def format_rows(table: Sequence[dict[str, Any]], margin: float) -> str:
    """The table as text; the choice is marked."""
    width = max(len(entry["name"]) for entry in table)
    lines = [f"  {'calibrator':{width}}  {'NLL':>8}  {'minus raw':>10}  {'± s.e.':>8}  {'seconds':>7}"]
    for entry in table:
        mark = "→" if entry["chosen"] else " "
        if entry["nll"] is None:
            lines.append(f"{mark} {entry['name']:{width}}  {entry['note'] or 'no finite loss'}")
        else:
            numbers = f"{entry['nll']:8.4f}  {entry['difference']:+10.4f}  {entry['standard_error']:8.4f}"
            lines.append(f"{mark} {entry['name']:{width}}  {numbers}  {entry['seconds']:7.2f}")
            if entry["note"]:
                lines[-1] += f"  {entry['note']}"
    rule = f"Cross-validated log-loss. Raw scores stay unless a calibrator is better by {margin:g} standard errors;"
    return "\n".join(
        [*lines, rule, "among the calibrators, the simplest within one standard error of the best is chosen."]
    )


def _simplicity(row: Row) -> tuple[int, ...]:
    places = [_SIMPLEST_FIRST.index(name) if name in _SIMPLEST_FIRST else len(_SIMPLEST_FIRST) for name in row.stages]
    # A pair is as complex as its more complex part, and more complex than that part alone.
    return max(places), len(places), sum(places)

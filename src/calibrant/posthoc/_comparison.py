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


_UNITS, _DRAWS, _LEVEL = 64, 99, 0.02


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


def pattern_left(log_probs: Floats, labels: np.ndarray, weights: Floats, seed: int) -> bool:
    """Whether the errors of probabilities follow a pattern in the log-probabilities that a small network could learn.

    It is a score test of the two parts of :class:`NeuralCalibrator`. The residuals (label minus probability) are
    correlated with random hidden units, and with pieces of a curve of each class's own log-probability. The largest
    correlation of each part is compared with those of labels drawn from the probabilities, at a level of 2 %.
    """
    rng = np.random.default_rng(seed)
    count, classes = log_probs.shape
    probs, capped = np.exp(log_probs), np.maximum(log_probs, -30.0)
    spread = capped.std(axis=0)
    x = (capped - capped.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    hidden = np.tanh(x @ rng.normal(size=(classes, _UNITS)) * 2 / np.sqrt(classes) + rng.normal(size=_UNITS))
    units = weights[:, None] * np.column_stack([np.ones(count), hidden])
    knots = np.quantile(capped, np.linspace(0.1, 0.9, 5))
    curve = [weights @ (probs * np.maximum(capped - knot, 0.0)).sum(axis=1) for knot in knots]
    expected = units.T @ probs, np.array(curve)
    cumulative = probs.cumsum(axis=1)[:, :-1]
    sums: tuple[list[Floats], list[Floats]] = [], []
    for draw in range(_DRAWS + 1):
        y = labels if draw == 0 else (cumulative < rng.random((count, 1))).sum(axis=1)
        by_class = np.stack([np.bincount(y, weights=unit, minlength=classes) for unit in units.T])
        sums[0].append((by_class - expected[0]).ravel())
        sums[1].append(weights @ np.maximum(capped[np.arange(count), y][:, None] - knots, 0.0) - expected[1])
    for part in sums:
        values = np.stack(part)
        scale = values[1:].std(axis=0)
        statistic = (values[:, scale > 0] ** 2 / scale[scale > 0] ** 2).max(axis=1, initial=0.0)
        if np.mean(statistic >= statistic[0]) <= _LEVEL:
            return True
    return False


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

"""Judge targets from records, by means and paired intervals over seeds.

"Significantly" means that the 95 % interval of the paired difference (Student's t over seeds) excludes zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from calibrant.metrics import Estimate, excludes_zero, mean_interval, paired_difference, ratio_of_means
from calibrant.report import MISSING, format_number
from studies.report import Column, Table, Verdict, by_seed, to_markdown

Records = Sequence[Mapping[str, Any]]
ENSEMBLE = "ensemble"
"""The targets exclude the ensemble: it is shown and compared, but not judged."""

UNMEASURED = Estimate(math.nan, math.nan, math.nan, 0.95, "no records")


@dataclass(frozen=True)
class Case:
    """One part of a target, usually a data set: the measured value, and whether the target holds (None: unknown)."""

    where: str
    measured: Estimate | float | None
    holds: bool | None


def judge(
    statement: str, cases: Iterable[Case], *, at_least: int | None = None, digits: int = 3, note: str = ""
) -> Verdict:
    """One verdict on a target with several parts. All parts must hold, or ``at_least`` that many.

    The note names the parts that miss the target and those that could not be judged.
    """
    cases = list(cases)
    needed = len(cases) if at_least is None else at_least
    holding, unknown = (sum(case.holds is value for case in cases) for value in (True, None))
    holds: bool | None = True
    if not cases or holding < needed:
        holds = None if not cases or holding + unknown >= needed else False
    parts = tuple((case.where, _shown(case.measured, digits), case.holds) for case in cases)
    measured = "; ".join(f"{where} {shown}" for where, shown, _ in parts) or None
    verdict = Verdict(statement, measured, holds, digits=digits, parts=parts)
    return replace(verdict, note="; ".join(filter(None, [places_not_held(verdict), note])))


def places_not_held(verdict: Verdict) -> str:
    """The parts that miss the target and those that could not be judged, as the note of a verdict names them."""
    words = (("not" if verdict.holds else "missed", False), ("unknown", None))
    named = {word: [where for where, _, holds in verdict.parts if holds is value] for word, value in words}
    return "; ".join(f"{word} on {', '.join(names)}" for word, names in named.items() if names)


def datasets(records: Records) -> list[str]:
    """The sets in the order of the records."""
    return list(dict.fromkeys(record["dataset"] for record in records))


def methods(records: Records) -> list[str]:
    """The methods in the order of the records."""
    return list(dict.fromkeys(record["method"] for record in records))


def mean(records: Records, metric: str, dataset: str, method: str) -> Estimate:
    """A metric's mean over seeds with its interval; NaN if it was not measured."""
    values = by_seed(records, metric, dataset=dataset, method=method)
    return mean_interval(values.values()) if values else UNMEASURED


def difference(records: Records, metric: str, dataset: str, a: str, b: str) -> Estimate:
    """Mean of a − b over the seeds of both methods, with its paired interval; NaN if they share no seed."""
    return shared_difference(*(by_seed(records, metric, dataset=dataset, method=m) for m in (a, b)))


def shared_difference(a: Mapping[Any, float], b: Mapping[Any, float]) -> Estimate:
    """Mean of a − b over the seeds of both mappings, with its paired interval; NaN if they share no seed.

    A store may hold more seeds of one method than of another.
    """
    shared = [seed for seed in a if seed in b]
    return paired_difference([a[s] for s in shared], [b[s] for s in shared]) if shared else UNMEASURED


def ratio(records: Records, metric: str, to: str, dataset: str, method: str) -> Estimate:
    """Ratio of two metrics' means over seeds, with its interval; NaN if one of them was not measured."""
    of_metrics = [by_seed(records, name, dataset=dataset, method=method) for name in (metric, to)]
    return ratio_of_means(*(list(values.values()) for values in of_metrics)) if all(of_metrics) else UNMEASURED


def not_above(value: Estimate | float, limit: float) -> bool | None:
    """Whether a mean is at most ``limit``; None if it was not measured."""
    number = _number(value)
    return None if math.isnan(number) else number <= limit


def at_least(value: Estimate | float, limit: float) -> bool | None:
    """Whether a mean is at least ``limit``; None if it was not measured."""
    number = _number(value)
    return None if math.isnan(number) else number >= limit


def undecided(estimates: Mapping[str, Estimate], limit: float) -> str:
    """A note that names the cases whose interval contains the limit: more seeds could change their verdicts."""
    names = [name for name, value in estimates.items() if value.low <= limit <= value.high]
    return f"{limit:g} lies within the interval on {', '.join(names)}" if names else ""


def not_significantly_above_zero(value: Estimate) -> bool | None:
    """False if the whole interval is above zero; None without an interval (a single seed)."""
    return None if math.isnan(value.low) else excludes_zero(value) <= 0


def _shown(value: Estimate | float | None, digits: int) -> str:
    """A value with ``digits`` decimals, or with more if it would be shown as zero.

    A target "below zero" must not seem to be met, or missed, by 0.000. Then the value has two significant digits, or
    as many decimals as give its interval two. Values below 1e-9 are rounding errors of zero.
    """
    number = math.nan if value is None else abs(_number(value))
    if number > 1e-9 and float(f"{number:.{digits}f}") == 0:
        half = (value.high - value.low) / 2 if isinstance(value, Estimate) else math.nan
        digits = max(digits, 1 - math.floor(math.log10(half if half > number else number)))
    return format_number(value, digits)


def _number(value: Estimate | float) -> float:
    return value.value if isinstance(value, Estimate) else value


POSTERIOR = "exact posterior"
"""The name of the row with the scores of the exact posterior on the same test samples."""

HEADINGS: dict[str, tuple[str, Literal["low", "high"] | None, int, str]] = {
    "accuracy": ("accuracy", "high", 3, ""),
    "ece10": ("ECE-10", "low", 3, "Expected calibration error, 10 bins of equal width."),
    "ece15": ("ECE-15", "low", 3, "Expected calibration error, 15 bins of equal width."),
    "floor_self15": ("own floor", None, 3, "Noise floor: ECE-15 of a calibrated model with the same confidences."),
    "true_ece": ("true ECE", "low", 4, "ECE-15 against the exact posterior on 20,000 samples, free of label noise."),
    "mean_abs_confidence_truth": (
        "|conf − truth|",
        "low",
        3,
        "Mean distance between confidence and exact probability.",
    ),
    "confidence_minus_accuracy": (
        "conf − acc",
        None,
        3,
        "Mean confidence minus accuracy; above 0 means over-confident.",
    ),
    "share_below_chance": ("below 1/C", None, 3, "Share of predictions with confidence below 1/C."),
    "share_map_above_90": ("map > 0.9", None, 3, "Share of a grid over the input space with confidence above 0.9."),
    "nll": ("NLL", "low", 3, "Mean negative log-likelihood, with probabilities of at least 1e-12."),
    "brier": ("Brier", "low", 3, ""),
    "smooth_ece": ("smECE", "low", 3, "Smooth calibration error (Błasiok & Nakkiran 2023)."),
    "aurc": ("AURC", "low", 4, "Area under the risk–coverage curve."),
}


def pivot(records: Records, metric: str) -> Table:
    """One metric's mean and interval, with a row per method and a column per set."""
    sets = datasets(records)
    _, better, digits, _ = HEADINGS[metric]
    rows: list[list[Any]] = [[m, *(cell(records, metric, name, m) for name in sets)] for m in methods(records)]
    floor = {"ece10": "floor_posterior10", "ece15": "floor_posterior15"}.get(metric)
    if floor:
        rows.append([POSTERIOR, *(cell(records, floor, name, methods(records)[0]) for name in sets)])
    columns = [Column("method"), *(Column(name, better, digits) for name in sets)]
    return Table(columns, rows, exempt=[POSTERIOR, ENSEMBLE])


def cell(records: Records, metric: str, dataset: str, method: str) -> Estimate | None:
    """The mean with its interval, or None (shown as a dash) if nothing was measured."""
    value = mean(records, metric, dataset, method)
    return None if math.isnan(value.value) else value


Cells = dict[str, tuple[str, str]]
"""By data set: the quantity and the measurement."""
NOTE = "Bold: this part misses the target."


def targets_table(verdicts: Sequence[Verdict]) -> str:
    """All targets, their measurements by data set, and their notes as a list.

    The place of a part begins with its data set; the rest names a quantity: ``cifar10 (rate × 1)``. A target with
    several quantities has one row for each. A quantity that differs between data sets becomes a note.
    """
    sets = list(dict.fromkeys(where.split(" ")[0] for verdict in verdicts for where, _, _ in verdict.parts))
    several = any(_quantity(cells) for verdict in verdicts for cells in _rows(verdict))
    rows, notes = [], []
    for verdict in verdicts:
        rows_of_verdict = _rows(verdict)
        for position, cells in enumerate(rows_of_verdict):
            first = [verdict.statement, verdict.word] if position == 0 else ["", ""]
            measured = [cells[name][1] if name in cells else None for name in sets]
            rows.append([first[0], *([_quantity(cells)] if several else []), *measured, first[1]])
        if note := "; ".join(filter(None, [*map(_different, rows_of_verdict), _remark(verdict)])):
            notes.append(f"- {verdict.statement}: {note}.")
    table = to_markdown(["target", *(["quantity"] if several else []), *sets, "verdict"], rows)
    missed = any(holds is False for verdict in verdicts for _, _, holds in verdict.parts)
    return "\n\n".join(filter(None, [table, NOTE if missed else "", "\n".join(notes)]))


def _rows(verdict: Verdict) -> list[Cells]:
    """The parts of a target, row by row: the first part of each data set, then the second, and so on."""
    rows: list[Cells] = []
    for where, shown, holds in verdict.parts:
        name, _, quantity = where.partition(" ")
        row = next((row for row in rows if name not in row), None)
        if row is None:
            rows.append(row := {})
        row[name] = (_bare(quantity), _marked(shown, holds))
    return rows or [{}]


def _marked(shown: str, holds: bool | None) -> str:
    if holds is None and shown != MISSING:
        return f"{shown} (not judged)"
    return f"**{shown}**" if holds is False else shown


def _bare(quantity: str) -> str:
    """A quantity without the brackets around the whole of it."""
    return quantity[1:-1] if quantity.startswith("(") and quantity.endswith(")") else quantity


def _quantity(cells: Cells) -> str:
    """The quantity that all cells of a row share; empty if they differ."""
    quantities = {quantity for quantity, _ in cells.values()}
    return quantities.pop() if len(quantities) == 1 else ""


def _different(cells: Cells) -> str:
    """The quantities of a row by data set, if they differ."""
    if len({quantity for quantity, _ in cells.values()}) < 2:
        return ""
    return ", ".join(f"{quantity} on {name}" for name, (quantity, _) in cells.items())


def _remark(verdict: Verdict) -> str:
    """The note without the places, which the table shows."""
    return verdict.note.removeprefix(places_not_held(verdict)).removeprefix("; ")

"""Judge targets from records, by means and paired intervals over seeds.

"Significantly" means that the 95 % interval of the paired difference (Student's t over seeds) excludes zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from calibrant.metrics import Estimate, excludes_zero, mean_interval, paired_difference, ratio_of_means
from calibrant.report import Verdict, by_seed, format_number

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
    found = (("not" if verdict.holds else "missed", False), ("unknown", None))
    named = {word: [where for where, _, holds in verdict.parts if holds is value] for word, value in found}
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
    found = [by_seed(records, name, dataset=dataset, method=method) for name in (metric, to)]
    return ratio_of_means(*(list(values.values()) for values in found)) if all(found) else UNMEASURED


def not_above(value: Estimate | float, limit: float) -> bool | None:
    """Whether a mean is at most ``limit``; None if it was not measured."""
    number = _number(value)
    return None if math.isnan(number) else number <= limit


def at_least(value: Estimate | float, limit: float) -> bool | None:
    """Whether a mean is at least ``limit``; None if it was not measured."""
    number = _number(value)
    return None if math.isnan(number) else number >= limit


def undecided(found: Mapping[str, Estimate], limit: float) -> str:
    """A note that names the cases whose interval contains the limit: more seeds could change their verdicts."""
    names = [name for name, value in found.items() if value.low <= limit <= value.high]
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

"""Targets: what the experiments were to show, judged from records by means and paired intervals over seeds.

"Significantly" means that the 95 % interval of the paired difference (Student's t over seeds) excludes zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.data.suite import NOISE_FREE
from calibrant.metrics import Estimate
from calibrant.report import (
    Verdict,
    by_seed,
    excludes_zero,
    format_number,
    mean_interval,
    paired_difference,
    ratio_of_means,
)

Records = Sequence[Mapping[str, Any]]
CANDIDATES = ("bo4sc", "self-calibrated")
"""The methods that are put forward; the others are what they are compared with."""
ENSEMBLE = "ensemble"
"""Shown, and compared with, but not judged: the targets except it by name."""

UNMEASURED = Estimate(math.nan, math.nan, math.nan, 0.95, "no records")


@dataclass(frozen=True)
class Case:
    """One part of a target, usually a data set: what was measured there, and whether the target holds."""

    where: str
    measured: Estimate | float | None
    holds: bool | None


def judge(
    statement: str, cases: Iterable[Case], *, at_least: int | None = None, digits: int = 3, note: str = ""
) -> Verdict:
    """One verdict on a target of several parts: all must hold, or ``at_least`` so many of them.

    What is missed, and what could not be judged, is named in the note.
    """
    cases = list(cases)
    missed = [case.where for case in cases if case.holds is False]
    unknown = [case.where for case in cases if case.holds is None]
    needed = len(cases) if at_least is None else at_least
    holding = len(cases) - len(missed) - len(unknown)
    holds: bool | None = True
    if not cases or holding < needed:
        holds = None if not cases or holding + len(unknown) >= needed else False
    found = (("not" if holds else "missed", missed), ("unknown", unknown))
    notes = [f"{word} on {', '.join(names)}" for word, names in found if names]
    measured = "; ".join(f"{case.where} {_shown(case.measured, digits)}" for case in cases) or None
    return Verdict(statement, measured, holds, "; ".join([*notes, note] if note else notes), digits)


def datasets(records: Records) -> list[str]:
    """The sets in the order of the records."""
    return list(dict.fromkeys(record["dataset"] for record in records))


def methods(records: Records) -> list[str]:
    """The methods in the order of the records."""
    return list(dict.fromkeys(record["method"] for record in records))


def mean(records: Records, metric: str, dataset: str, method: str) -> Estimate:
    """A metric's mean over seeds with its interval; NaN where it was not measured."""
    values = by_seed(records, metric, dataset=dataset, method=method)
    return mean_interval(values.values()) if values else UNMEASURED


def difference(records: Records, metric: str, dataset: str, a: str, b: str) -> Estimate:
    """Mean of a − b over seeds, with its paired interval; NaN where one of them was not measured."""
    found = [by_seed(records, metric, dataset=dataset, method=m) for m in (a, b)]
    return paired_difference(*found) if all(found) else UNMEASURED


def ratio(records: Records, metric: str, to: str, dataset: str, method: str) -> Estimate:
    """Ratio of two metrics' means over seeds, with its interval; NaN where one of them was not measured."""
    found = [by_seed(records, name, dataset=dataset, method=method) for name in (metric, to)]
    return ratio_of_means(*(list(values.values()) for values in found)) if all(found) else UNMEASURED


def not_above(value: Estimate | float, limit: float) -> bool | None:
    """Whether a mean is at most ``limit``; None where it was not measured."""
    number = _number(value)
    return None if math.isnan(number) else number <= limit


def at_least(value: Estimate | float, limit: float) -> bool | None:
    """Whether a mean is at least ``limit``; None where it was not measured."""
    number = _number(value)
    return None if math.isnan(number) else number >= limit


def undecided(found: Mapping[str, Estimate], limit: float) -> str:
    """A note that names where the interval holds the limit: more seeds could turn the verdict there."""
    names = [name for name, value in found.items() if value.low <= limit <= value.high]
    return f"{limit:g} lies within the interval on {', '.join(names)}" if names else ""


def not_significantly_above_zero(value: Estimate) -> bool | None:
    """False where the whole interval is above zero; None where there is no interval (a single seed)."""
    return None if math.isnan(value.low) else excludes_zero(value) <= 0


def bo4sc_targets(records: Records) -> list[Verdict]:
    """BO4SC with the setting that the grid search chose, against what the first paper compared it with."""
    sets = datasets(records)
    against = {
        metric: {name: difference(records, metric, name, "bo4sc", other) for name in sets}
        for metric, other in (("ece10", "standard"), ("accuracy", "standard"))
    }
    isotonic = {name: difference(records, "ece10", name, "bo4sc", "isotonic") for name in sets}
    return [
        judge(
            "bo4sc: mean ECE-10 below standard's on all sets (difference)",
            [Case(name, d, _below(d.value, 0.0)) for name, d in against["ece10"].items()],
        ),
        judge(
            "bo4sc: ECE-10 nowhere significantly worse than isotonic's (paired difference)",
            [Case(name, d, not_significantly_above_zero(d)) for name, d in isotonic.items()],
        ),
        judge(
            "bo4sc: mean ECE-10 below isotonic's on at least three sets (difference)",
            [Case(name, d, _below(d.value, 0.0)) for name, d in isotonic.items()],
            at_least=min(3, len(sets)),
        ),
        judge(
            "bo4sc: accuracy at most 0.01 below standard's (difference)",
            [Case(name, d, at_least(d, -0.01)) for name, d in against["accuracy"].items()],
        ),
    ]


def self_calibrated_targets(records: Records) -> list[Verdict]:
    """The recommended method, with one setting for all sets, against the truth and every baseline.

    Which target a set belongs to is its nature, not what was measured there: a failed run has no floor either.
    """
    sets, own = datasets(records), "self-calibrated"
    noisy = [name for name in sets if name not in NOISE_FREE]
    clean = [name for name in sets if name in NOISE_FREE]
    ratios = {name: ratio(records, "ece15", "floor_posterior15", name, own) for name in noisy}
    true = {name: mean(records, "true_ece", name, own) for name in noisy}
    small = {name: mean(records, "ece15", name, own) for name in clean}
    accuracy = {name: difference(records, "accuracy", name, own, "standard-stopped") for name in sets}
    return [
        judge(
            "self-calibrated: ECE-15 at most 1.25 of the exact posterior's own (ratio of means)",
            [Case(name, value, not_above(value, 1.25)) for name, value in ratios.items()],
            digits=2,
            note=undecided(ratios, 1.25),
        ),
        judge(
            "self-calibrated: true ECE at most 0.012 where the posterior is known",
            [Case(name, value, not_above(value, 0.012)) for name, value in true.items()],
            digits=4,
        ),
        judge(
            "self-calibrated: ECE-15 at most 0.006 where labels have no noise",
            [Case(name, value, not_above(value, 0.006)) for name, value in small.items()],
            digits=4,
            note=undecided(small, 0.006),
        ),
        judge(
            "self-calibrated: accuracy at most 0.003 below standard-stopped's (difference)",
            [Case(name, d, at_least(d, -0.003)) for name, d in accuracy.items()],
            digits=4,
        ),
        judge(
            "self-calibrated: NLL not significantly worse than any baseline's but the ensemble's (nearest rival)",
            [_nearest_rival(records, name, own) for name in sets],
            digits=4,
        ),
    ]


def baselines(records: Records) -> list[str]:
    """What the candidates are compared with, without the ensemble."""
    return [name for name in methods(records) if name not in (*CANDIDATES, ENSEMBLE)]


def _nearest_rival(records: Records, dataset: str, own: str) -> Case:
    """The baseline whose NLL comes nearest to being significantly better, or is so by most.

    A baseline without an interval (a failed training, a single seed) leaves the case open unless another decides it.
    """
    found = {name: difference(records, "nll", dataset, own, name) for name in baselines(records)}
    judged = {name: d for name, d in found.items() if not math.isnan(d.low)}
    if not found:
        return Case(dataset, None, None)
    if judged:
        rival = max(judged, key=lambda name: judged[name].low)
        if len(judged) == len(found) or not not_significantly_above_zero(judged[rival]):
            return Case(f"{dataset} ({rival})", judged[rival], not_significantly_above_zero(judged[rival]))
    rival = next(name for name in found if name not in judged)
    return Case(f"{dataset} ({rival})", found[rival], None)


def _shown(value: Estimate | float | None, digits: int) -> str:
    """A measurement with so many decimals, or with two significant digits where these would make a zero of it.

    A target that asks for less than zero is not met by 0.000. Rounding leaves 1e-17 of a zero, which stays one.
    """
    number = math.nan if value is None else abs(_number(value))
    if number > 1e-9 and float(f"{number:.{digits}f}") == 0:
        digits = 1 - math.floor(math.log10(number))
    return format_number(value, digits)


def _number(value: Estimate | float) -> float:
    return value.value if isinstance(value, Estimate) else value


def _below(value: float, limit: float) -> bool | None:
    return None if math.isnan(value) else value < limit

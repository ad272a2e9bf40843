"""Judge the targets of the first paper's experiments, by means and paired intervals over seeds.

"Significantly" means that the 95 % interval of the paired difference (Student's t over seeds) excludes zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from calibrant.metrics import Estimate
from studies.common.synthetic import POOLED
from studies.common.verdicts import (
    ENSEMBLE,
    Case,
    Records,
    at_least,
    datasets,
    difference,
    judge,
    mean,
    methods,
    not_above,
    not_significantly_above_zero,
    ratio,
    undecided,
)
from studies.report import Verdict
from studies.sets import NOISE_FREE

OWN = "self-calibrated"
CANDIDATES = ("bo4sc", OWN, POOLED)
"""Our methods; all others are baselines."""


def verdicts(records: Records) -> list[Verdict]:
    """The targets that these records can decide."""
    return [
        verdict
        for method in CANDIDATES
        if method in methods(records)
        for verdict in (bo4sc_targets(records) if method == "bo4sc" else self_calibrated_targets(records, method))
    ]


def bo4sc_targets(records: Records) -> list[Verdict]:
    """Targets of BO4SC, with the setting from the grid search, against the baselines of the first paper."""
    sets = datasets(records)

    def cases(metric: str, rival: str, holds: Callable[[Estimate], bool | None]) -> list[Case]:
        gaps = {name: difference(records, metric, name, "bo4sc", rival) for name in sets}
        return [Case(name, gap, holds(gap)) for name, gap in gaps.items()]

    return [
        judge("bo4sc: mean ECE-10 below standard's on all sets (difference)", cases("ece10", "standard", below_zero)),
        judge(
            "bo4sc: ECE-10 nowhere significantly worse than isotonic's (paired difference)",
            cases("ece10", "isotonic", not_significantly_above_zero),
        ),
        judge(
            "bo4sc: mean ECE-10 below isotonic's on at least three sets (difference)",
            cases("ece10", "isotonic", below_zero),
            at_least=min(3, len(sets)),
        ),
        judge(
            "bo4sc: accuracy at most 0.01 below standard's (difference)",
            cases("accuracy", "standard", lambda gap: at_least(gap, -0.01)),
        ),
    ]


def self_calibrated_targets(records: Records, method: str = OWN) -> list[Verdict]:
    """Targets of a recommended method, with one setting for all sets, against the truth and every baseline.

    The kind of a set (noisy or noise-free) decides which target applies. A missing floor does not: a failed run lacks
    one too.
    """
    sets = datasets(records)
    noisy = [name for name in sets if name not in NOISE_FREE]
    ratios = {name: ratio(records, "ece15", "floor_posterior15", name, method) for name in noisy}
    true = {name: mean(records, "true_ece", name, method) for name in noisy}
    small = {name: mean(records, "ece15", name, method) for name in sets if name not in noisy}
    accuracy = {name: difference(records, "accuracy", name, method, "standard-stopped") for name in sets}

    def limited(values: dict[str, Estimate], limit: float) -> list[Case]:
        return [Case(name, value, not_above(value, limit)) for name, value in values.items()]

    return [
        judge(
            f"{method}: ECE-15 at most 1.25 of the exact posterior's own (ratio of means)",
            limited(ratios, 1.25),
            digits=2,
            note=undecided(ratios, 1.25),
        ),
        judge(f"{method}: true ECE at most 0.012 where the posterior is known", limited(true, 0.012), digits=4),
        judge(
            f"{method}: ECE-15 at most 0.006 where labels have no noise",
            limited(small, 0.006),
            digits=4,
            note=undecided(small, 0.006),
        ),
        judge(
            f"{method}: accuracy at most 0.003 below standard-stopped's (difference)",
            [Case(name, gap, at_least(gap, -0.003)) for name, gap in accuracy.items()],
            digits=4,
        ),
        judge(
            f"{method}: NLL not significantly worse than any baseline's but the ensemble's (nearest rival)",
            [_nearest_rival(records, name, method) for name in sets],
            digits=4,
        ),
    ]


def baselines(records: Records) -> list[str]:
    """The baselines without the ensemble."""
    return [name for name in methods(records) if name not in (*CANDIDATES, ENSEMBLE)]


def _nearest_rival(records: Records, dataset: str, method: str) -> Case:
    """Compare with the strongest baseline: the largest lower limit of our NLL minus the baseline's.

    A baseline without an interval (failed training, single seed) leaves the case open, unless another baseline is
    significantly better.
    """
    gaps = {name: difference(records, "nll", dataset, method, name) for name in baselines(records)}
    judged = {name: d for name, d in gaps.items() if not math.isnan(d.low)}
    if not gaps:
        return Case(dataset, None, None)
    if judged:
        rival = max(judged, key=lambda name: judged[name].low)
        if len(judged) == len(gaps) or not not_significantly_above_zero(judged[rival]):
            return Case(f"{dataset} ({rival})", judged[rival], not_significantly_above_zero(judged[rival]))
    rival = next(name for name in gaps if name not in judged)
    return Case(f"{dataset} ({rival})", gaps[rival], None)


def below_zero(value: Estimate) -> bool | None:
    """Whether a mean is below zero; None if it was not measured."""
    return None if math.isnan(value.value) else value.value < 0

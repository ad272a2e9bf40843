"""Judge the targets of the first paper's experiments, by means and paired intervals over seeds.

"Significantly" means that the 95 % interval of the paired difference (Student's t over seeds) excludes zero.
"""

from __future__ import annotations

import math

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


def bo4sc_targets(records: Records) -> list[Verdict]:
    """Targets of BO4SC, with the setting from the grid search, against the baselines of the first paper."""
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


def self_calibrated_targets(records: Records, own: str = OWN) -> list[Verdict]:
    """Targets of a recommended method, with one setting for all sets, against the truth and every baseline.

    The kind of a set (noisy or noise-free) decides which target applies. A missing floor does not: a failed run lacks
    one too.
    """
    sets = datasets(records)
    noisy = [name for name in sets if name not in NOISE_FREE]
    clean = [name for name in sets if name in NOISE_FREE]
    ratios = {name: ratio(records, "ece15", "floor_posterior15", name, own) for name in noisy}
    true = {name: mean(records, "true_ece", name, own) for name in noisy}
    small = {name: mean(records, "ece15", name, own) for name in clean}
    accuracy = {name: difference(records, "accuracy", name, own, "standard-stopped") for name in sets}
    return [
        judge(
            f"{own}: ECE-15 at most 1.25 of the exact posterior's own (ratio of means)",
            [Case(name, value, not_above(value, 1.25)) for name, value in ratios.items()],
            digits=2,
            note=undecided(ratios, 1.25),
        ),
        judge(
            f"{own}: true ECE at most 0.012 where the posterior is known",
            [Case(name, value, not_above(value, 0.012)) for name, value in true.items()],
            digits=4,
        ),
        judge(
            f"{own}: ECE-15 at most 0.006 where labels have no noise",
            [Case(name, value, not_above(value, 0.006)) for name, value in small.items()],
            digits=4,
            note=undecided(small, 0.006),
        ),
        judge(
            f"{own}: accuracy at most 0.003 below standard-stopped's (difference)",
            [Case(name, d, at_least(d, -0.003)) for name, d in accuracy.items()],
            digits=4,
        ),
        judge(
            f"{own}: NLL not significantly worse than any baseline's but the ensemble's (nearest rival)",
            [_nearest_rival(records, name, own) for name in sets],
            digits=4,
        ),
    ]


def baselines(records: Records) -> list[str]:
    """The baselines without the ensemble."""
    return [name for name in methods(records) if name not in (*CANDIDATES, ENSEMBLE)]


def _nearest_rival(records: Records, dataset: str, own: str) -> Case:
    """Compare with the strongest baseline: the largest lower limit of our NLL minus the baseline's.

    A baseline without an interval (failed training, single seed) leaves the case open, unless another baseline is
    significantly better.
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


def _below(value: float, limit: float) -> bool | None:
    return None if math.isnan(value) else value < limit

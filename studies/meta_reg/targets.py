"""Judge the targets of the study by paired differences over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from calibrant.metrics import Estimate, excludes_zero, mean_interval, ratio_of_means
from studies.common.verdicts import (
    UNMEASURED,
    Case,
    difference,
    judge,
    mean,
    not_above,
    shared_difference,
)
from studies.images import SHIFTS
from studies.meta_reg.groups import RunGroup, times
from studies.meta_reg.variants import RATES
from studies.report import Verdict, by_seed

RIVAL = "ce-average-ts"
"""The rival of ``recommended``: cross-entropy with the same moving average and a temperature."""
PRINTED = {"cifar10": 0.0214, "cifar100": 0.0194}
"""The paper's ECE of FLγ-SECE."""
ERROR_MARGIN, RATE_MARGIN, TIME, RATIO = 0.002, 0.007, 1.3, 1.5
TARGETS = (
    "Paired over seeds, with 95 % intervals (Student's t) for two or more seeds. Most verdicts are on the means. "
    "Errors and ECE are in per cent, and their differences in percentage points."
)
SWEEP = (10, 20, 50, 100, 200, 500, 1000)


def judged(found: Sequence[RunGroup]) -> list[RunGroup]:
    """The groups that the targets apply to: full runs of the default network on the two CIFARs, short recipe."""
    return [g for g in found if g.name in PRINTED]


def targets(found: Sequence[RunGroup]) -> list[Verdict]:
    """All verdicts; a target that no group can judge is reported as not measured."""
    return [*first(found), *second(found), *third(found)]


def first(found: Sequence[RunGroup]) -> list[Verdict]:
    """Targets of ``flg-sece``, our robust form of the paper's method."""
    rates = {"flg-sece": 1.0, **RATES}
    errors = [
        (f"{g.name} (rate × {factor:g})", difference(g.records, "error", g.dataset, name, "ce"))
        for g in found
        for name, factor in rates.items()
    ]
    gaps = [(g.name, difference(g.records, "ece", g.dataset, "flg-sece", "ce")) for g in found]
    levels = [(g, mean(g.records, "ece", g.dataset, "flg-sece")) for g in found if g.dataset in PRINTED]
    limits = {"cifar10": "2.14 % on CIFAR-10", "cifar100": "1.94 % on CIFAR-100 (a harder target)"}
    spreads = [(g.name, _mean(g, "gamma_std", "flg-sece")) for g in found]
    bounds = [(g.name, _mean(g, "gamma_on_bound", "flg-sece")) for g in found]
    rivals = [
        (f"{g.name} {name}", times(difference(g.records, metric, g.dataset, "flg-sece", "focal-control"), factor))
        for g in found
        for metric, name, factor in (("ece", "ECE (points)", 100.0), ("nll", "NLL", 1.0))
    ]
    above = [where for where, gap in rivals if excludes_zero(gap) > 0]
    return [
        judge(
            f"flg-sece: error within {100 * RATE_MARGIN:g} points of ce's at a tenth, once and ten times its outer "
            "learning rate (paired difference, points)",
            [Case(where, times(gap, 100), not_above(gap, RATE_MARGIN)) for where, gap in errors],
            digits=2,
        ),
        judge(
            "flg-sece: standard deviation of γ on the test images between 0.1 and 1.5",
            [Case(where, value, _between(value, 0.1, 1.5)) for where, value in spreads],
        ),
        judge(
            "flg-sece: fewer than a tenth of the test images have a γ on a bound",
            [Case(where, value, _below(value, 0.1)) for where, value in bounds],
        ),
        judge(
            "flg-sece: ECE below ce's (paired difference, points)",
            [Case(where, times(gap, 100), _below(gap, 0.0)) for where, gap in gaps],
            digits=2,
        ),
        *(
            judge(
                f"flg-sece: ECE not above the paper's {where}",
                [
                    Case(g.name, times(value, 100), not_above(value, PRINTED[dataset]))
                    for g, value in levels
                    if g.dataset == dataset
                ],
                digits=2,
            )
            for dataset, where in limits.items()
        ),
        judge(
            "Does a γ for each sample beat one γ for all? flg-sece − focal-control, paired: significantly below zero",
            [Case(where, gap, _significantly_below(gap)) for where, gap in rivals],
            note=f"significantly above zero on {', '.join(above)}" if above else "",
        ),
    ]


def second(found: Sequence[RunGroup]) -> list[Verdict]:
    """Targets of ``recommended`` against its rival."""

    def gaps(metric: str, to: str, other: str | None = None) -> list[tuple[str, Estimate]]:
        def own(g: RunGroup) -> Estimate:
            a, b = (by_seed(g.records, m, dataset=g.dataset, method=n) for m, n in pairs)
            return shared_difference(a, b)

        pairs = ((metric, "recommended"), (other or metric, to))
        return [(g.name, own(g)) for g in found]

    def verdict(
        statement: str, cases: list[tuple[str, Estimate]], limit: float = 0.0, *, points: bool = True
    ) -> Verdict:
        factor, digits = (100.0, 2) if points else (1.0, 4)
        parts = [Case(where, times(value, factor), not_above(value, limit)) for where, value in cases]
        return judge(statement, parts, digits=digits)

    ratios = [(g.name, _time_ratio(g)) for g in found]
    alone = [where for where, value in ratios if math.isnan(value.low) and not math.isnan(value.value)]
    single = [f"one seed on {', '.join(alone)}"] if alone else []
    return [
        verdict(
            f"recommended: ECE without any post-hoc step not above {RIVAL}'s (paired difference, points)",
            gaps("ece", RIVAL),
        ),
        verdict(
            f"recommended: NLL with its own temperature not above {RIVAL}'s (paired difference)",
            gaps("nll_ts", RIVAL, "nll"),
            points=False,
        ),
        verdict(
            f"recommended: error within {100 * ERROR_MARGIN:g} points of ce's (paired difference, points)",
            gaps("error", "ce"),
            ERROR_MARGIN,
        ),
        verdict(
            f"recommended: mean over shifts of log(ECE / {RIVAL}'s ECE) below zero",
            [(g.name, shift_ratio(g, "recommended", RIVAL)) for g in found],
            points=False,
        ),
        judge(
            f"recommended: at most {TIME:g} × the training time of ce (ratio)",
            [Case(where, value, not_above(value, TIME)) for where, value in ratios],
            note="; ".join(
                ["without compilation: an epoch of more than twice the median counts as a mean epoch", *single]
            ),
        ),
    ]


def third(found: Sequence[RunGroup]) -> list[Verdict]:
    """Target on the ECE of ``recommended``, relative to its own noise floor."""
    cases = []
    for g in found:
        for bins in SWEEP:
            values = [r[f"ece/{bins}"] / r[f"ece_floor/{bins}"] for r in g.of("recommended")]
            ratio = mean_interval(values) if values else UNMEASURED
            cases.append(Case(f"{g.name} ({bins} bins)", ratio, _below(ratio, RATIO)))
    statement = f"recommended: ECE below {RATIO:g} × its own noise floor at every number of bins (ratio)"
    return [judge(statement, cases, digits=2)]


def shift_ratio(group: RunGroup, method: str, rival: str) -> Estimate:
    """Mean over shifts of log(ECE / the rival's ECE), with an interval over the shared seeds."""
    values = []
    rivals = {r["seed"]: r for r in group.of(rival)}
    for record in group.of(method):
        if other := rivals.get(record["seed"]):
            logs = [math.log(record[f"ece@{s}"] / other[f"ece@{s}"]) for s in SHIFTS]
            values.append(sum(logs) / len(logs))
    return mean_interval(values) if values else UNMEASURED


def _time_ratio(group: RunGroup) -> Estimate:
    own, other = (
        {r["seed"]: r["steady_seconds"] for r in group.of(m) if r.get("steady_seconds")} for m in ("recommended", "ce")
    )
    shared = [seed for seed in own if seed in other]
    return ratio_of_means([own[s] for s in shared], [other[s] for s in shared]) if shared else UNMEASURED


def _mean(group: RunGroup, metric: str, method: str) -> Estimate:
    values = group.values(method, metric)
    return mean_interval(values) if values else UNMEASURED


def _known(judged: Callable[..., bool]) -> Callable[..., bool | None]:
    def answer(value: Estimate, *limits: Any) -> bool | None:
        return None if math.isnan(value.value) else judged(value, *limits)

    return answer


@_known
def _between(value: Estimate, low: float, high: float) -> bool:
    return low <= value.value <= high


@_known
def _below(value: Estimate, limit: float) -> bool:
    return value.value < limit


def _significantly_below(value: Estimate) -> bool | None:
    """Whether the whole interval lies below zero; None without an interval."""
    return None if math.isnan(value.low) else excludes_zero(value) < 0

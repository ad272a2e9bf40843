"""Judge the targets of the study by paired differences over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from calibrant.metrics import Estimate, excludes_zero, mean_interval, ratio_of_means
from studies.common.verdicts import UNMEASURED, Case, judge, shared_difference
from studies.images import SHIFTS
from studies.meta_reg.groups import RunGroup, times
from studies.meta_reg.variants import RATES
from studies.report import Verdict

RIVAL = "ce-average-ts"
"""The rival of ``recommended``: cross-entropy with the same moving average and a temperature."""
PRINTED = {"cifar10": 0.0214, "cifar100": 0.0194}
"""The paper's ECE of FLγ-SECE."""
ERROR_MARGIN, RATE_MARGIN, TIME, RATIO, GAIN = 0.002, 0.007, 1.3, 1.5, 0.03
TARGETS = (
    "Paired over seeds, with 95 % intervals (Student's t) for two or more seeds. Most verdicts are on the means. "
    "Errors and ECE are in per cent, and their differences in percentage points."
)
SWEEP = (10, 20, 50, 100, 200, 500, 1000)

Values = Mapping[str, Estimate]
"""Measurements of one group by quantity, such as "(rate × 10)"; an empty text if there is one."""


class Target(NamedTuple):
    """What is measured of each group, and whether a measurement meets the target.

    ``points`` shows fractions in percentage points. ``note`` makes a remark from the groups.
    """

    values: Callable[[RunGroup], Values]
    holds: Callable[[Estimate], bool | None]
    points: bool = False
    digits: int = 3
    note: Callable[[Sequence[RunGroup]], str] = lambda groups: ""

    def judge(self, statement: str, groups: Sequence[RunGroup]) -> Verdict:
        """One verdict with a part for each group and quantity."""
        factor, digits = (100, 2) if self.points else (1, self.digits)
        cases = []
        for group in groups:
            for quantity, value in self.values(group).items():
                holds = None if math.isnan(value.value) else self.holds(value)
                cases.append(Case(f"{group.name} {quantity}".strip(), times(value, factor), holds))
        return judge(statement, cases, digits=digits, note=self.note(groups))


def at_most(limit: float) -> Callable[[Estimate], bool]:
    """The target is a mean of at most ``limit``."""
    return lambda value: value.value <= limit


def gap(metric: str, method: str, rival: str) -> Callable[[RunGroup], Values]:
    """Measure a paired difference."""
    return lambda group: {"": group.gap(metric, method, rival)}


def mean_of(method: str, metric: str, dataset: str = "") -> Callable[[RunGroup], Values]:
    """Measure a mean over seeds, perhaps on one data set only."""

    def measure(group: RunGroup) -> Values:
        if dataset not in ("", group.dataset):
            return {}
        values = group.values(method, metric)
        return {"": mean_interval(values) if values else UNMEASURED}

    return measure


def over_rates(group: RunGroup) -> Values:
    """The error of ``flg-sece`` minus that of ``ce``, by multiple of the outer learning rate."""
    rates = {"flg-sece": 1.0, **RATES}
    return {f"(rate × {factor:g})": group.gap("error", name, "ce") for name, factor in rates.items()}


def against_one_gamma(group: RunGroup) -> Values:
    """``flg-sece`` minus ``focal-control``, which has one γ for all samples."""
    ece, nll = (group.gap(metric, "flg-sece", "focal-control") for metric in ("ece", "nll"))
    return {"ECE (points)": times(ece, 100), "NLL": nll}


def worse_than_one_gamma(groups: Sequence[RunGroup]) -> str:
    """Where one γ for all is significantly better, as a note."""
    above = [f"{g.name} {what}" for g in groups for what, gap in against_one_gamma(g).items() if excludes_zero(gap) > 0]
    return f"significantly above zero on {', '.join(above)}" if above else ""


def with_temperature(group: RunGroup) -> Values:
    """The NLL of ``recommended`` with its own temperature, minus that of its rival."""
    ours, theirs = (
        {r["seed"]: r[m] for r in group.of(name)} for name, m in (("recommended", "nll_ts"), (RIVAL, "nll"))
    )
    return {"": shared_difference(ours, theirs)}


def shift_ratio(group: RunGroup) -> Values:
    """Mean over shifts of log(ECE of ``recommended`` / its rival's ECE), with an interval over the shared seeds."""
    ours, theirs = (
        {r["seed"]: fmean(math.log(r[f"ece@{shift}"]) for shift in SHIFTS) for r in group.of(name)}
        for name in ("recommended", RIVAL)
    )
    return {"": shared_difference(ours, theirs)}


def time_ratio(group: RunGroup) -> Values:
    """The training time of ``recommended`` over that of ``ce``, without compilation."""
    ours, theirs = (
        {r["seed"]: r["steady_seconds"] for r in group.of(m) if r.get("steady_seconds")} for m in ("recommended", "ce")
    )
    shared = [seed for seed in ours if seed in theirs]
    return {"": ratio_of_means([ours[s] for s in shared], [theirs[s] for s in shared]) if shared else UNMEASURED}


def about_times(groups: Sequence[RunGroup]) -> str:
    """How the times are compared, and where there is one seed."""
    ratios = {group.name: time_ratio(group)[""] for group in groups}
    single = [name for name, ratio in ratios.items() if math.isnan(ratio.low) and not math.isnan(ratio.value)]
    note = "without compilation: an epoch of more than twice the median counts as a mean epoch"
    return f"{note}; one seed on {', '.join(single)}" if single else note


def over_floor(group: RunGroup) -> Values:
    """The ECE of ``recommended`` over its own noise floor, by number of bins."""
    runs = group.of("recommended")
    ratios = {bins: [r[f"ece/{bins}"] / r[f"ece_floor/{bins}"] for r in runs] for bins in SWEEP}
    return {f"({bins} bins)": mean_interval(values) if values else UNMEASURED for bins, values in ratios.items()}


OF_FLG_SECE = {
    f"flg-sece: error within {100 * RATE_MARGIN:g} points of ce's at a tenth, once and ten times its outer learning "
    "rate (paired difference, points)": Target(over_rates, at_most(RATE_MARGIN), points=True),
    "flg-sece: standard deviation of γ on the test images between 0.1 and 1.5": Target(
        mean_of("flg-sece", "gamma_std"), lambda std: 0.1 <= std.value <= 1.5
    ),
    "flg-sece: fewer than a tenth of the test images have a γ on a bound": Target(
        mean_of("flg-sece", "gamma_on_bound"), lambda share: share.value < 0.1
    ),
    "flg-sece: ECE below ce's (paired difference, points)": Target(
        gap("ece", "flg-sece", "ce"), lambda ece: ece.value < 0, points=True
    ),
    "flg-sece: ECE not above the paper's 2.14 % on CIFAR-10": Target(
        mean_of("flg-sece", "ece", "cifar10"), at_most(PRINTED["cifar10"]), points=True
    ),
    "flg-sece: ECE not above the paper's 1.94 % on CIFAR-100 (a harder target)": Target(
        mean_of("flg-sece", "ece", "cifar100"), at_most(PRINTED["cifar100"]), points=True
    ),
    "Does a γ for each sample beat one γ for all? flg-sece − focal-control, paired: significantly below zero": Target(
        against_one_gamma,
        lambda own: None if math.isnan(own.low) else excludes_zero(own) < 0,
        note=worse_than_one_gamma,
    ),
}
"""Targets of ``flg-sece``, our robust form of the paper's method, by statement."""
OF_RECOMMENDED = {
    f"recommended: ECE without any post-hoc step not above {RIVAL}'s (paired difference, points)": Target(
        gap("ece", "recommended", RIVAL), at_most(0.0), points=True
    ),
    f"recommended: NLL with its own temperature not above {RIVAL}'s (paired difference)": Target(
        with_temperature, at_most(0.0), digits=4
    ),
    f"recommended: error within {100 * ERROR_MARGIN:g} points of ce's (paired difference, points)": Target(
        gap("error", "recommended", "ce"), at_most(ERROR_MARGIN), points=True
    ),
    f"recommended: mean over shifts of log(ECE / {RIVAL}'s ECE) below zero": Target(
        shift_ratio, at_most(0.0), digits=4
    ),
    f"recommended: at most {TIME:g} × the training time of ce (ratio)": Target(
        time_ratio, at_most(TIME), note=about_times
    ),
    f"recommended: ECE below {RATIO:g} × its own noise floor at every number of bins (ratio)": Target(
        over_floor, lambda ratio: ratio.value < RATIO, digits=2
    ),
}
"""Targets of ``recommended``, against its rival and its own noise floor."""
OF_WEIGHTS = {
    f"weights: error at least {100 * GAIN:g} points below ce's (paired difference, points)": Target(
        gap("error", "weights", "ce"), at_most(-GAIN), points=True
    ),
    "weights: error below that of ce-clean, which trains on the clean parts (paired difference, points)": Target(
        gap("error", "weights", "ce-clean"), at_most(0.0), points=True
    ),
}
"""Targets of learned weights, with noisy labels."""


def judged(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """The groups that the targets apply to: full runs of the default network on the two CIFARs, short recipe."""
    return [g for g in groups if g.name in PRINTED]


def targets(groups: Sequence[RunGroup]) -> list[Verdict]:
    """All verdicts; a target that no group can judge is reported as not measured."""
    return [target.judge(statement, groups) for statement, target in (OF_FLG_SECE | OF_RECOMMENDED).items()]


def noisy_targets(groups: Sequence[RunGroup]) -> list[Verdict]:
    """The verdicts on groups with noisy labels; empty without such groups."""
    return [target.judge(statement, groups) for statement, target in OF_WEIGHTS.items()] if groups else []

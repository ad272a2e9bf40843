"""Check what the paper says about its Tables 1 to 3 and Figure 5, with our records and with the printed tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrant.metrics import Estimate
from calibrant.report import format_number
from studies.common.shared import count
from studies.common.verdicts import difference, undecided
from studies.meta_reg.claims import Claim
from studies.meta_reg.groups import RunGroup, times
from studies.meta_reg.paper import METRICS, paper, printed, quoted
from studies.meta_reg.targets import SWEEP
from studies.report import by_seed

OWN, GAMMA_NETS = "flg-sece", ("flg-dece", "flg-sece")
"""The paper's method, and its two methods with γ-Net."""
CALIBRATION = {"ece": "ECE", "mce": "MCE", "ace": "ACE", "classwise_ece": "classwise ECE"}
MISSING = "not yet measured"


def lowest_errors(group: RunGroup) -> Claim:
    """Section 5.1: FLγ-SECE has considerably lower errors on calibration metrics than all methods of Table 1."""
    rivals = _of_table_1(group)
    statement = f"{group.name}: FLγ-SECE has the lowest calibration errors of the paper's methods"
    said = _printed_ranks(group.dataset)
    if OWN not in rivals or len(rivals) < 2:
        return Claim(statement, said, MISSING, None)
    ranks = {name: rank(OWN, common_means(group, rivals, metric)) for metric, name in CALIBRATION.items()}
    return Claim(
        statement,
        said,
        f"rank among {len(rivals)}: {_in_words(ranks)}",
        max(ranks.values()) == 1,
        f"means {seeds_in_words(group, rivals)}; holds if every rank is 1",
    )


def _printed_ranks(dataset: str) -> str:
    """What the paper says, and the ranks in its own Table 1."""
    table = paper()["table1"].get(dataset, {})
    if OWN not in table:
        return "lower errors on calibration metrics"
    ranks = {name: rank(OWN, {m: row[metric][0] for m, row in table.items()}) for metric, name in CALIBRATION.items()}
    return f"lower errors on calibration metrics (rank among {len(table)} in its Table 1: {_in_words(ranks)})"


def ece_over_bins(group: RunGroup) -> Claim:
    """Section 5.2.2, Figure 5: the methods with γ-Net have a much lower ECE at every number of bins."""
    rivals = _of_table_1(group)
    statement = f"{group.name}: FLγ-DECE and FLγ-SECE have a lower ECE than other methods at every number of bins"
    if not set(GAMMA_NETS) <= set(rivals) or len(rivals) == len(GAMMA_NETS):
        return Claim(statement, "much lower, from 10 to 1,000 bins", MISSING, None, f"needs {' and '.join(GAMMA_NETS)}")
    means = {bins: common_means(group, rivals, f"ece/{bins}") for bins in SWEEP}
    best = {
        bins: min((m for m in rivals if m not in GAMMA_NETS), key=lambda m, own=own: own[m])  # type: ignore[misc]
        for bins, own in means.items()
    }
    shown = [
        f"{bins:,} bins {' and '.join(f'{100 * means[bins][m]:.2f}' for m in GAMMA_NETS)} ({best[bins]} "
        f"{100 * means[bins][best[bins]]:.2f})"
        for bins in (SWEEP[0], SWEEP[-1])
    ]
    lower = [bins for bins, own in means.items() if max(own[m] for m in GAMMA_NETS) < own[best[bins]]]
    return Claim(
        statement,
        "much lower, from 10 to 1,000 bins",
        f"at {len(lower)} of {len(SWEEP)} numbers of bins; ECE % beside the best other method: {'; '.join(shown)}",
        len(lower) == len(SWEEP),
        f"means {seeds_in_words(group, rivals)}; holds if both are below all other methods at every number of bins",
    )


def ece_growth(group: RunGroup) -> Claim:
    """Section 5.2.2: SECE keeps the calibration stable against the number of bins."""
    rivals = _of_table_1(group)
    statement = f"{group.name}: the ECE of FLγ-SECE changes least with the number of bins"
    if OWN not in rivals or len(rivals) < 2:
        return Claim(statement, "stable", MISSING, None)
    few, many = (common_means(group, rivals, f"ece/{bins}") for bins in (SWEEP[0], SWEEP[-1]))
    floors = [common_means(group, rivals, f"ece_floor/{bins}")[OWN] for bins in (SWEEP[0], SWEEP[-1])]
    growth = {m: many[m] - few[m] for m in rivals}
    least = min(rivals, key=lambda m: growth[m])
    return Claim(
        statement,
        "stable",
        f"{OWN} {_percents(few[OWN], many[OWN])} from {SWEEP[0]} to {SWEEP[-1]:,} bins, rank of the growth "
        f"{rank(OWN, growth)} among {len(rivals)}; least: {least} ({_percents(few[least], many[least])})",
        least == OWN,
        f"means {seeds_in_words(group, rivals)}; holds if the growth is the least. The ECE of a calibrated network "
        f"with the confidences of {OWN} grows from {100 * floors[0]:.2f} % to {100 * floors[1]:.2f} %, and that of a "
        "badly calibrated one grows least",
    )


def _percents(low: float, high: float) -> str:
    return f"{100 * low:.2f} to {100 * high:.2f} %"


def table_3(group: RunGroup) -> Claim:
    """Section 6 on Table 3: meta-regularisation is very competitive with other methods of regularisation."""
    rows = {row.source if row.method is None else row.method: (row.ece, row.error) for row in quoted(group.dataset)}
    statement = f"{group.name}: no method of Table 3 has both a lower ECE and a lower error than FLγ-SECE"
    said = f"very competitive (both lower in its Table 3: {_dominating(rows)})" if rows else "very competitive"
    run = [m for m in rows if m in group.methods]
    if OWN not in run or len(run) < 2:
        needs = "needs the methods of Table 3: mdca, focal-mdca, mbls, mbls-0, focal-sb-ece and focal-sb-avuc"
        return Claim(statement, said, MISSING, None, needs)
    eces, errors = (common_means(group, run, metric) for metric in ("ece", "error"))
    found = {m: (eces[m], errors[m]) for m in run}
    told = ", ".join(f"{m} {100 * ece:.2f} / {100 * error:.2f}" for m, (ece, error) in found.items())
    better = _dominating(found)
    return Claim(
        statement,
        said,
        f"both lower: {better}, of {len(run) - 1} methods",
        better == "none",
        f"means {seeds_in_words(group, run)}, our network and recipe for all. ECE / error %: {told}",
    )


def _dominating(scores: Mapping[str, tuple[float, float]]) -> str:
    ece, error = scores.get(OWN, (math.nan, math.nan))
    return ", ".join(m for m, (own, wrong) in scores.items() if own < ece and wrong < error) or "none"


@dataclass(frozen=True)
class Gaps:
    """What the paper says about differences of two methods: all are below zero, or above it if ``sign`` is 1.

    A pair is a method, its rival and a metric. The paper has the same differences in its table ``table``.
    """

    statement: str
    said: str
    pairs: tuple[tuple[str, str, str], ...]
    sign: int = -1
    table: int = 1

    def __call__(self, group: RunGroup) -> Claim:
        gaps = {
            _pair_name(own, rival, metric, self.pairs): difference(group.records, metric, group.dataset, own, rival)
            for own, rival, metric in self.pairs
        }
        said = _with_printed(self.said, group.dataset, self.pairs, table=self.table)
        claim = Claim(f"{group.name}: {self.statement}", said, MISSING, None)
        if any(math.isnan(gap.value) for gap in gaps.values()):
            methods = dict.fromkeys(method for pair in self.pairs for method in pair[:2])
            return replace(claim, note=f"needs {' and '.join(methods)}")
        one, side = len(gaps) == 1, "above" if self.sign > 0 else "below"
        rule = f"holds if {'the mean difference is' if one else 'all mean differences are'} {side} zero"
        return replace(
            claim,
            measured="; ".join(in_points(gap) if one else f"{name} {in_points(gap)}" for name, gap in gaps.items()),
            holds=all(self.sign * gap.value > 0 for gap in gaps.values()),
            note=remark(f"{_paired(group, self.pairs)}; {rule}", gaps),
        )


def _paired(group: RunGroup, pairs: Sequence[tuple[str, str, str]]) -> str:
    """Over how many seeds each difference is taken."""
    seeds = {_pair_name(*pair, pairs): len(common_seeds(group, pair[:2])) for pair in pairs}
    if len(set(seeds.values())) == 1:
        return f"paired over {count(next(iter(seeds.values())), 'seed')}"
    return f"paired over the shared seeds ({', '.join(f'{name} {number}' for name, number in seeds.items())})"


def _pair_name(own: str, rival: str, metric: str, pairs: Sequence[tuple[str, str, str]]) -> str:
    """What differs between the pairs: the method or the metric."""
    return own if len({pair[0] for pair in pairs}) > 1 else {"error": "error", **CALIBRATION}[metric]


def _with_printed(said: str, dataset: str, pairs: Sequence[tuple[str, str, str]], *, table: int = 1) -> str:
    """What the paper says, and the same differences in its own table."""
    told = []
    for own, rival, metric in pairs:
        a, b = (printed(dataset, method, metric, table=table) for method in (own, rival))
        if a and b:
            gap = format_number(100 * (a.mean - b.mean), 2)
            told.append(f"{_pair_name(own, rival, metric, pairs)} {gap}")
    return f"{said} (in its Table {table}, points: {', '.join(told)})" if told else said


def _of_table_1(group: RunGroup) -> list[str]:
    return [m for m in group.methods if m in paper()["table1"]["cifar10"]]


def common_seeds(group: RunGroup, methods: Sequence[str]) -> set[int]:
    """The seeds that all these methods have. A method with other seeds would be compared by luck."""
    return set.intersection(*({r["seed"] for r in group.of(m)} for m in methods))


def common_means(group: RunGroup, methods: Sequence[str], metric: str) -> dict[str, float]:
    """The mean of a metric by method over the seeds that all methods have, or over all seeds if there are none."""
    seeds = common_seeds(group, methods)
    found = {m: by_seed(group.records, metric, method=m) for m in methods}
    return {
        m: float(np.mean([v for seed, v in values.items() if not seeds or seed in seeds]))
        for m, values in found.items()
    }


def rank(own: str, values: Mapping[str, float]) -> int:
    """The place of a method among all, 1 for the smallest value."""
    return sorted(values, key=lambda m: values[m]).index(own) + 1


def _in_words(ranks: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {rank}" for name, rank in ranks.items())


def seeds_in_words(group: RunGroup, methods: Sequence[str]) -> str:
    """Over which seeds these methods are compared."""
    seeds = common_seeds(group, methods)
    return f"over their {count(len(seeds), 'common seed')}" if seeds else "over all seeds"


def remark(rule: str, gaps: Mapping[str, Estimate]) -> str:
    """The rule of a verdict, and the differences whose intervals contain zero or that have no interval."""
    single = [name for name, gap in gaps.items() if math.isnan(gap.low) and not math.isnan(gap.value)]
    alone = f"{', '.join(single)}: one seed, so no interval" if single else ""
    return "; ".join(part for part in (rule, undecided(gaps, 0.0), alone) if part)


def in_points(value: Estimate) -> str:
    """A fraction with its interval, in percentage points."""
    return format_number(times(value, 100), 2)


TEMPERATURE = Gaps(
    "TS lowers the calibration errors of CE (points)",
    "lowers them",
    tuple(("ce-ts", "ce", metric) for metric in CALIBRATION),
)
FOCAL_LOSSES = Gaps(
    "Focal and FLSD are calibrated better than CE (ECE, points)",
    "improve calibration in general",
    (("focal", "ce", "ece"), ("flsd", "ce", "ece")),
)
FLSD_MCE = Gaps("FLSD has a high MCE (minus CE's, points)", "high", (("flsd", "ce", "mce"),), sign=1)
TABLE_2 = Gaps(
    "with SECE, γ-Net has a lower error and lower calibration errors (Table 2; FLγ-SECE − FLγ, points)",
    "both improve",
    tuple((OWN, "flg", metric) for metric in METRICS if metric != "nll"),
    table=2,
)
"""What Sections 5.1 and 5.2.2 say about differences."""
JUDGES: tuple[Callable[[RunGroup], Claim], ...] = (
    lowest_errors,
    TEMPERATURE,
    FOCAL_LOSSES,
    FLSD_MCE,
    ece_over_bins,
    ece_growth,
    TABLE_2,
    table_3,
)
"""One claim per setup each."""

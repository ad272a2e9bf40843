"""Check what the paper says about its Tables 1 to 3 and Figure 5, with our records and with the printed tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from calibrant.metrics import Estimate
from calibrant.report import by_seed, format_number
from studies.common.verdicts import difference, undecided
from studies.meta_reg.claims import Claim
from studies.meta_reg.groups import RunGroup, times
from studies.meta_reg.paper import METRICS, paper, printed, quoted
from studies.meta_reg.targets import SWEEP

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
    ranks = {name: _rank(OWN, _means(group, rivals, metric)) for metric, name in CALIBRATION.items()}
    return Claim(
        statement,
        said,
        f"rank among {len(rivals)}: {_in_words(ranks)}",
        max(ranks.values()) == 1,
        f"means {_seeds_in_words(group, rivals)}; holds if every rank is 1",
    )


def _printed_ranks(dataset: str) -> str:
    """What the paper says, and the ranks in its own Table 1."""
    table = paper()["table1"].get(dataset, {})
    if OWN not in table:
        return "lower errors on calibration metrics"
    ranks = {name: _rank(OWN, {m: row[metric][0] for m, row in table.items()}) for metric, name in CALIBRATION.items()}
    return f"lower errors on calibration metrics (rank among {len(table)} in its Table 1: {_in_words(ranks)})"


def ece_over_bins(group: RunGroup) -> Claim:
    """Section 5.2.2, Figure 5: the methods with γ-Net have a much lower ECE at every number of bins."""
    rivals = _of_table_1(group)
    statement = f"{group.name}: FLγ-DECE and FLγ-SECE have a lower ECE than other methods at every number of bins"
    if not set(GAMMA_NETS) <= set(rivals) or len(rivals) == len(GAMMA_NETS):
        return Claim(statement, "much lower, from 10 to 1,000 bins", MISSING, None, f"needs {' and '.join(GAMMA_NETS)}")
    means = {bins: _means(group, rivals, f"ece/{bins}") for bins in SWEEP}
    best = {
        bins: min((m for m in rivals if m not in GAMMA_NETS), key=lambda m, own=own: own[m])  # type: ignore[misc]
        for bins, own in means.items()
    }
    told = [
        f"{bins}: {' and '.join(f'{100 * own[m]:.2f}' for m in GAMMA_NETS)} (best other {best[bins]} "
        f"{100 * own[best[bins]]:.2f})"
        for bins, own in means.items()
    ]
    return Claim(
        statement,
        "much lower, from 10 to 1,000 bins",
        f"ECE %, FLγ-DECE and FLγ-SECE by number of bins: {'; '.join(told)}",
        all(max(own[m] for m in GAMMA_NETS) < own[best[bins]] for bins, own in means.items()),
        f"means {_seeds_in_words(group, rivals)}; holds if both are below all other methods at every number of bins",
    )


def ece_growth(group: RunGroup) -> Claim:
    """Section 5.2.2: SECE keeps the calibration stable against the number of bins."""
    rivals = _of_table_1(group)
    statement = f"{group.name}: the ECE of FLγ-SECE changes least with the number of bins"
    if OWN not in rivals or len(rivals) < 2:
        return Claim(statement, "stable", MISSING, None)
    few, many = (_means(group, rivals, f"ece/{bins}") for bins in (SWEEP[0], SWEEP[-1]))
    floors = [_means(group, rivals, f"ece_floor/{bins}")[OWN] for bins in (SWEEP[0], SWEEP[-1])]
    growth = {m: many[m] - few[m] for m in rivals}
    least = min(rivals, key=lambda m: growth[m])
    return Claim(
        statement,
        "stable",
        f"{OWN} {100 * few[OWN]:.2f} % with {SWEEP[0]} bins, {100 * many[OWN]:.2f} % with {SWEEP[-1]:,}, rank of the "
        f"growth {_rank(OWN, growth)} among {len(rivals)}; least: {least} ({100 * few[least]:.2f} %, "
        f"{100 * many[least]:.2f} %)",
        least == OWN,
        f"means {_seeds_in_words(group, rivals)}; holds if the growth is the least. The ECE of a calibrated network "
        f"with the confidences of {OWN} grows from {100 * floors[0]:.2f} % to {100 * floors[1]:.2f} %, and that of a "
        "badly calibrated one grows least",
    )


def focal_losses(group: RunGroup) -> Claim:
    """Section 5.1: Focal and FLSD improve calibration in general."""
    return _gaps_below_zero(
        group,
        "Focal and FLSD are calibrated better than CE (ECE, points)",
        "improve calibration in general",
        [("focal", "ce", "ece"), ("flsd", "ce", "ece")],
    )


def flsd_mce(group: RunGroup) -> Claim:
    """Section 5.1: FLSD has a high MCE."""
    gap = difference(group.records, "mce", group.dataset, "flsd", "ce")
    known = not math.isnan(gap.value)
    return Claim(
        f"{group.name}: FLSD has a high MCE (minus CE's, points)",
        _with_printed("high", group.dataset, [("flsd", "ce", "mce")]),
        _points(gap) if known else MISSING,
        gap.value > 0 if known else None,
        _remark("holds if the mean difference is above zero", {"flsd": gap}),
    )


def temperature(group: RunGroup) -> Claim:
    """Section 5.1: temperature scaling reduces the errors on calibration metrics."""
    pairs = [("ce-ts", "ce", metric) for metric in CALIBRATION]
    return _gaps_below_zero(group, "TS lowers the calibration errors of CE (points)", "lowers them", pairs)


def table_2(group: RunGroup) -> Claim:
    """Section 5.2.2 on Table 2: with SECE, both predictive and calibration performance improve."""
    pairs = [(OWN, "flg", metric) for metric in METRICS if metric != "nll"]
    statement = "with SECE, γ-Net has a lower error and lower calibration errors (Table 2; FLγ-SECE − FLγ, points)"
    return _gaps_below_zero(group, statement, "both improve", pairs, table=2)


def table_3(group: RunGroup) -> Claim:
    """Section 6 on Table 3: meta-regularisation is very competitive with other methods of regularisation."""
    rows = {row.source if row.method is None else row.method: (row.ece, row.error) for row in quoted(group.dataset)}
    statement = f"{group.name}: no method of Table 3 has both a lower ECE and a lower error than FLγ-SECE"
    said = f"very competitive (both lower in its Table 3: {_dominating(rows)})" if rows else "very competitive"
    run = [m for m in rows if m in group.methods]
    if OWN not in run or len(run) < 2:
        needs = "needs the methods of Table 3: mdca, focal-mdca, mbls, mbls-0, focal-sb-ece and focal-sb-avuc"
        return Claim(statement, said, MISSING, None, needs)
    eces, errors = (_means(group, run, metric) for metric in ("ece", "error"))
    found = {m: (eces[m], errors[m]) for m in run}
    told = ", ".join(f"{m} {100 * ece:.2f} / {100 * error:.2f}" for m, (ece, error) in found.items())
    better = _dominating(found)
    return Claim(
        statement,
        said,
        f"both lower: {better}; ECE / error %: {told}",
        better == "none",
        f"means {_seeds_in_words(group, run)}; our networks and recipe, all methods alike",
    )


def _dominating(scores: Mapping[str, tuple[float, float]]) -> str:
    ece, error = scores.get(OWN, (math.nan, math.nan))
    return ", ".join(m for m, (own, wrong) in scores.items() if own < ece and wrong < error) or "none"


def _gaps_below_zero(
    group: RunGroup, statement: str, said: str, pairs: Sequence[tuple[str, str, str]], *, table: int = 1
) -> Claim:
    """A claim that holds if the mean difference of every pair is below zero."""
    gaps = {_pair_name(*pair, pairs): difference(group.records, pair[2], group.dataset, *pair[:2]) for pair in pairs}
    known = {name: gap for name, gap in gaps.items() if not math.isnan(gap.value)}
    return Claim(
        f"{group.name}: {statement}",
        _with_printed(said, group.dataset, pairs, table=table),
        "; ".join(f"{name} {_points(gap)}" for name, gap in known.items()) if len(known) == len(gaps) else MISSING,
        all(gap.value < 0 for gap in known.values()) if len(known) == len(gaps) else None,
        _remark("holds if all mean differences are below zero", known),
    )


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


def _common_seeds(group: RunGroup, methods: Sequence[str]) -> set[int]:
    """The seeds that all these methods have. A method with other seeds would be compared by luck."""
    return set.intersection(*({r["seed"] for r in group.of(m)} for m in methods))


def _means(group: RunGroup, methods: Sequence[str], metric: str) -> dict[str, float]:
    """The mean of a metric by method over the seeds that all methods have, or over all seeds if there are none."""
    seeds = _common_seeds(group, methods)
    found = {m: by_seed(group.records, metric, method=m) for m in methods}
    return {
        m: float(np.mean([v for seed, v in values.items() if not seeds or seed in seeds]))
        for m, values in found.items()
    }


def _rank(own: str, values: Mapping[str, float]) -> int:
    return sorted(values, key=lambda m: values[m]).index(own) + 1


def _in_words(ranks: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {rank}" for name, rank in ranks.items())


def _seeds_in_words(group: RunGroup, methods: Sequence[str]) -> str:
    seeds = len(_common_seeds(group, methods))
    return f"over their {seeds} common seed{'s' * (seeds != 1)}" if seeds else "over all seeds"


def _remark(rule: str, gaps: Mapping[str, Estimate]) -> str:
    single = [name for name, gap in gaps.items() if math.isnan(gap.low) and not math.isnan(gap.value)]
    alone = f"{', '.join(single)}: one seed, so no interval" if single else ""
    return "; ".join(part for part in (rule, undecided(gaps, 0.0), alone) if part)


def _points(value: Estimate) -> str:
    return format_number(times(value, 100), 2)


JUDGES: tuple[Callable[[RunGroup], Claim], ...] = (
    lowest_errors,
    temperature,
    focal_losses,
    flsd_mce,
    ece_over_bins,
    ece_growth,
    table_2,
    table_3,
)
"""One claim per setup each."""

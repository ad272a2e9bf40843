"""Check the paper's claims about trained networks: its Tables 1 to 3, Figures 3 to 5, and Section 4.1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from calibrant.base.words import count
from calibrant.methods.catalogue import RECIPES
from calibrant.metrics import Estimate
from calibrant.report import format_number
from studies.common.verdicts import undecided
from studies.meta_reg.claims import MISSING, Claim
from studies.meta_reg.groups import RunGroup, times
from studies.meta_reg.paper import METRICS, claimed_gains, paper, printed, quoted
from studies.meta_reg.targets import PRINTED, SWEEP
from studies.meta_reg.variants import POSITIVE

OWN, GAMMA_NETS = "flg-sece", ("flg-dece", "flg-sece")
"""The paper's method, and its two methods with γ-Net."""
CALIBRATION = {"ece": "ECE", "mce": "MCE", "ace": "ACE", "classwise_ece": "classwise ECE"}
WINDOW = 10
"""Number of epochs over which the ECE before a drop of the learning rate is averaged."""
SMOOTHED = ("ls-0.05", "ls-0.1", "mixup")
STILL = 1e-6
"""Up to this standard deviation, γ is still the same for all images."""
Answer = tuple[str, bool | None, str]
"""What was measured, whether the claim holds, and a note."""


class GroupClaim(NamedTuple):
    """A claim about the runs of one setup.

    Parameters
    ----------
    said : what the paper says, by data set
    answer : measures a group; None if it lacks the runs
    needs : the runs that it needs
    always : whether each data set of the targets has a row, run or not, because the claim is about the paper's tables
    """

    said: Callable[[str], str]
    answer: Callable[[RunGroup], Answer | None]
    needs: str = ""
    always: bool = False

    def judge(self, statement: str, group: RunGroup) -> Claim:
        """The claim about one group."""
        answer = self.answer(group) or (MISSING, None, self.needs)
        return Claim(f"{group.name}: {statement}", self.said(group.dataset), *answer)

    def rows(self, statement: str, groups: Sequence[RunGroup]) -> list[Claim]:
        """One row for each group that can decide the claim, or one row "not yet measured"."""
        claims = {group.name: self.judge(statement, group) for group in groups}
        known = [c for name, c in claims.items() if c.measured != MISSING or (self.always and name in PRINTED)]
        return known or [claim._replace(statement=statement) for claim in list(claims.values())[:1]]


def measured(groups: Sequence[RunGroup]) -> list[Claim]:
    """The claims that need trained networks. Networks trained on noisy labels are left out: the paper has none."""
    clean = [group for group in groups if not group.noisy]
    return [gains(clean), *(row for statement, claim in CLAIMS.items() for row in claim.rows(statement, clean))]


def gains(groups: Sequence[RunGroup]) -> Claim:
    """CE-DECE minus FLγ-SECE, as a mean over the data sets with the short recipe."""
    said = claimed_gains()
    pairs = {g.name: {m: g.gap(m, "ce-dece", OWN) for m in said} for g in groups if g.records[0]["recipe"] == "short"}
    known = {name: gaps for name, gaps in pairs.items() if not any(math.isnan(gap.value) for gap in gaps.values())}
    claim = Claim(
        "FLγ-SECE has a lower ECE, MCE and ACE than CE-DECE, mean over data sets (gain in points)",
        f"{', '.join(f'{m.upper()} {100 * value:g}' for m, value in said.items())} over three data sets",
    )
    rule = "holds if all three mean gains are positive, whatever their size"
    if not known:
        return claim._replace(note=rule)
    means = {m: float(np.mean([gaps[m].value for gaps in known.values()])) for m in said}
    each = {f"{where} {m.upper()}": gap for where, gaps in known.items() for m, gap in gaps.items()}
    if smaller := [m.upper() for m, value in means.items() if value < said[m]]:
        rule += f"; smaller than the paper's: {', '.join(smaller)}"
    parts = "; ".join(f"{where} {in_points(gap)}" for where, gap in each.items())
    text = ", ".join(f"{m.upper()} {format_number(100 * value, 2)}" for m, value in means.items())
    return claim._replace(
        measured=f"{text} over {', '.join(known)}",
        holds=min(means.values()) > 0,
        note=remark(f"{rule}; gains by data set: {parts}", each),
    )


def rises(group: RunGroup) -> Answer | None:
    """ECE by epoch around the first drop of the learning rate, for the paper's methods and variants of γ-Net."""
    if group.records[0]["recipe"] != "paper":
        return None
    rivals = [m for m in group.methods if (m in _paper_methods(group) or m.startswith("flg")) and "-ts" not in m]
    means = {m: np.mean([around_first_drop(r.get("curve", {})) for r in group.of(m)], axis=0) for m in rivals}
    means = {m: levels for m, levels in means.items() if not np.isnan(levels).any()}
    if not means:
        return None
    rise = {m: levels[2] - levels[1] for m, levels in means.items()}
    most = max(rise, key=lambda m: rise[m])
    text = "; ".join(f"{m} {', '.join(f'{100 * value:.2f}' for value in levels)}" for m, levels in means.items())
    return (
        f"{text}; largest rise: {most}",
        bool(min(rise.values()) > 0 and most == "flsd") if "flsd" in rise else None,
        f"means of the last {WINDOW} epochs before the drop, and of the first and the second half of the epochs "
        "between the two drops; holds if the third is above the second for all methods, most for FLSD",
    )


def around_first_drop(curve: Mapping[str, list[float]]) -> tuple[float, ...]:
    """Mean ECE before the first drop of the paper's recipe, and in both halves of the epochs until the second drop.

    The first mean is over ``WINDOW`` epochs. All are NaN if the curve lacks some of these epochs. Halves do not depend
    on how long the ECE takes to settle after the drop.
    """
    first, second = RECIPES["paper"].milestones
    middle = (first + second) // 2
    ece = pd.Series(curve.get("ece", []), index=curve.get("epoch", []), dtype=float)
    spans = ((first - WINDOW + 1, first), (first + 1, middle), (middle + 1, second))
    return tuple(float(ece.reindex(range(begin, end + 1)).mean(skipna=False)) for begin, end in spans)


def smoothing(group: RunGroup) -> Answer | None:
    """Label smoothing and mixup: error and ECE."""
    run, rivals = [m for m in SMOOTHED if m in group.methods], _paper_methods(group)
    if not run or "ce" not in rivals:
        return None
    best = group.means(rivals, "error").idxmin()
    gaps = {m: group.gap("ece", m, "ce") for m in run}
    return (
        f"lowest error: {best}; ECE minus ce's, points: {_listed(gaps)}",
        best in SMOOTHED and all(gap.value > 0 for gap in gaps.values()),
        remark(
            f"lowest of the paper's {len(rivals)} methods that were run, {seeds_in_words(group, rivals)}; holds if it "
            "is one of these three and all mean differences are above zero",
            gaps,
        ),
    )


def spread_grows(group: RunGroup, method: str) -> Answer | None:
    """The standard deviation of γ on the test images by epoch."""
    runs = [r["curve"]["gamma_std"] for r in group.of(method) if r.get("curve", {}).get("gamma_std")]
    if not runs:
        return None
    spreads = np.mean([run[: min(map(len, runs))] for run in runs], axis=0)
    moving = int(np.argmax(spreads > STILL))  # 0 if it is never above: then the spread does not grow
    begin, last = spreads[moving], spreads[-1]
    held = f"0 until epoch {moving}, where γ is held at its start; " if moving else ""
    return (
        f"{held}{begin:.3f} after epoch {moving + 1}, {last:.3f} after the last",
        bool(last > begin),
        "holds if it is larger after the last epoch than after the first epoch in which γ moves; means over seeds",
    )


def ranks(group: RunGroup, fields: Mapping[str, str]) -> Answer | None:
    """The rank of FLγ-SECE among the paper's methods for each of some fields; ``fields`` has their names in words."""
    if (rivals := _rivals(group)) is None:
        return None
    places = {name: rank(OWN, group.means(rivals, field)) for field, name in fields.items()}
    by_bins = " by number of bins" if "mce/10" in fields else ""
    return (
        f"rank among {len(rivals)}{by_bins}: {', '.join(f'{name} {place}' for name, place in places.items())}",
        max(places.values()) == 1,
        f"means {seeds_in_words(group, rivals)}; holds if every rank is 1",
    )


def rank(method: str, values: pd.Series) -> int:
    """The place of a method among all, 1 for the smallest value."""
    return int(values.rank(method="first")[method])


def _printed_ranks(dataset: str) -> str:
    """What the paper says, and the ranks in its own Table 1."""
    table = paper()["table1"].get(dataset, {})
    if OWN not in table:
        return "lower errors on calibration metrics"
    means = pd.DataFrame({m: {metric: row[metric][0] for metric in CALIBRATION} for m, row in table.items()}).T
    places = ", ".join(f"{name} {rank(OWN, means[metric])}" for metric, name in CALIBRATION.items())
    return f"lower errors on calibration metrics (rank among {len(table)} in its Table 1: {places})"


def ece_over_bins(group: RunGroup) -> Answer | None:
    """Section 5.2.2, Figure 5: the methods with γ-Net have a much lower ECE at every number of bins."""
    rivals = _paper_methods(group)
    others = [m for m in rivals if m not in GAMMA_NETS]
    if not set(GAMMA_NETS) <= set(rivals) or not others:
        return None
    means = pd.DataFrame({bins: 100 * group.means(rivals, f"ece/{bins}") for bins in SWEEP})
    best = means.loc[others].idxmin()
    lower = (means.loc[list(GAMMA_NETS)].max() < means.loc[others].min()).sum()
    shown = [
        f"{bins:,} bins {' and '.join(f'{means[bins][m]:.2f}' for m in GAMMA_NETS)} ({best[bins]} "
        f"{means[bins][best[bins]]:.2f})"
        for bins in (SWEEP[0], SWEEP[-1])
    ]
    return (
        f"at {lower} of {len(SWEEP)} numbers of bins; ECE % beside the best other method: {'; '.join(shown)}",
        bool(lower == len(SWEEP)),
        f"means {seeds_in_words(group, rivals)}; holds if both are below all other methods at every number of bins",
    )


def ece_growth(group: RunGroup) -> Answer | None:
    """Section 5.2.2: SECE keeps the calibration stable against the number of bins."""
    if (rivals := _rivals(group)) is None:
        return None
    few, many = (100 * group.means(rivals, f"ece/{bins}") for bins in (SWEEP[0], SWEEP[-1]))
    low, high = (100 * group.means(rivals, f"ece_floor/{bins}")[OWN] for bins in (SWEEP[0], SWEEP[-1]))
    growth = many - few
    least = growth.idxmin()
    return (
        f"{OWN} {few[OWN]:.2f} to {many[OWN]:.2f} % from {SWEEP[0]} to {SWEEP[-1]:,} bins, rank of the growth "
        f"{rank(OWN, growth)} among {len(rivals)}; least: {least} ({few[least]:.2f} to {many[least]:.2f} %)",
        bool(least == OWN),
        f"means {seeds_in_words(group, rivals)}; holds if the growth is the least. The ECE of a calibrated network "
        f"with the confidences of {OWN} grows from {low:.2f} % to {high:.2f} %, and that of a badly calibrated one "
        "grows least",
    )


def table_3(group: RunGroup) -> Answer | None:
    """Section 6 on Table 3: meta-regularisation is very competitive with other methods of regularisation."""
    run = [row.method for row in quoted(group.dataset) if row.method in group.methods]
    if OWN not in run or len(run) < 2:
        return None
    means = pd.DataFrame({metric: 100 * group.means(run, metric) for metric in ("ece", "error")})
    better = _dominating(means)
    told = ", ".join(f"{m} {ece:.2f} / {error:.2f}" for m, ece, error in means.itertuples())
    return (
        f"both lower: {better}, of {len(run) - 1} methods",
        better == "none",
        f"means {seeds_in_words(group, run)}, our network and recipe for all. ECE / error %: {told}",
    )


def _printed_table_3(dataset: str) -> str:
    rows = {row.method or row.source: {"ece": row.ece, "error": row.error} for row in quoted(dataset)}
    both = f" (both lower in its Table 3: {_dominating(pd.DataFrame(rows).T)})" if rows else ""
    return f"very competitive{both}"


def _dominating(scores: pd.DataFrame) -> str:
    """The methods with a lower ECE and a lower error than FLγ-SECE."""
    return ", ".join(scores.index[(scores < scores.loc[OWN]).all(axis=1)]) or "none"


Pairs = Mapping[str, tuple[str, str, str]]
"""Differences by name: method, rival and metric."""


def gap_claim(said: str, pairs: Pairs, *, sign: int = -1, table: int = 1, always: bool = True) -> GroupClaim:
    """A claim about the sign of paired differences; it quotes the same differences in the paper's own table."""
    methods = dict.fromkeys(method for pair in pairs.values() for method in pair[:2])

    def printed_too(dataset: str) -> str:
        cells = {n: [printed(dataset, m, metric, table=table) for m in (a, b)] for n, (a, b, metric) in pairs.items()}
        gaps = [f"{n} {format_number(100 * (a.mean - b.mean), 2)}" for n, (a, b) in cells.items() if a and b]
        return f"{said} (in its Table {table}, points: {', '.join(gaps)})" if gaps else said

    def answer(group: RunGroup) -> Answer | None:
        gaps = {name: group.gap(metric, method, rival) for name, (method, rival, metric) in pairs.items()}
        if any(math.isnan(gap.value) for gap in gaps.values()):
            return None
        seeds = {name: len(group.seeds(pair[:2])) for name, pair in pairs.items()}
        if len(set(seeds.values())) == 1:
            paired = f"paired over {count(next(iter(seeds.values())), 'seed')}"
        else:
            paired = f"paired over the shared seeds ({', '.join(f'{name} {number}' for name, number in seeds.items())})"
        which = "the mean difference is" if len(gaps) == 1 else "all mean differences are"
        return (
            in_points(next(iter(gaps.values()))) if len(gaps) == 1 else _listed(gaps),
            all(sign * gap.value > 0 for gap in gaps.values()),
            remark(f"{paired}; holds if {which} {'above' if sign > 0 else 'below'} zero", gaps),
        )

    return GroupClaim(printed_too, answer, f"needs {' and '.join(methods)}", always)


def _paper_methods(group: RunGroup) -> list[str]:
    return [m for m in group.methods if m in paper()["table1"]["cifar10"]]


def _rivals(group: RunGroup) -> list[str] | None:
    """The paper's methods that were run; None if FLγ-SECE or all others are missing."""
    methods = _paper_methods(group)
    return methods if OWN in methods and len(methods) > 1 else None


def seeds_in_words(group: RunGroup, methods: Sequence[str]) -> str:
    """Over which seeds these methods are compared."""
    seeds = group.seeds(methods)
    return f"over their {count(len(seeds), 'common seed')}" if seeds else "over all seeds"


def remark(rule: str, gaps: Mapping[str, Estimate]) -> str:
    """The rule of a verdict, and the differences whose intervals contain zero or that have no interval."""
    single = [name for name, gap in gaps.items() if math.isnan(gap.low) and not math.isnan(gap.value)]
    alone = f"{', '.join(single)}: one seed, so no interval" if single else ""
    return "; ".join(filter(None, (rule, undecided(gaps, 0.0), alone)))


def in_points(value: Estimate) -> str:
    """A fraction with its interval, in percentage points."""
    return format_number(times(value, 100), 2)


def _listed(gaps: Mapping[str, Estimate]) -> str:
    return "; ".join(f"{name} {in_points(gap)}" for name, gap in gaps.items())


def _says(words: str) -> Callable[[str], str]:
    return lambda dataset: words


SMOOTHING = {m: (m, "ce", "ece") for m in SMOOTHED}
TABLE_2 = {{"error": "error", **CALIBRATION}[metric]: (OWN, "flg", metric) for metric in METRICS if metric != "nll"}
NEEDS_TABLE_3 = "needs the methods of Table 3: mdca, focal-mdca, mbls, mbls-0, focal-sb-ece and focal-sb-avuc"
CLAIMS: dict[str, GroupClaim] = {
    "test ECE rises after the first drop of the learning rate, most for FLSD (per cent)": GroupClaim(
        _says("rises for all, most for FLSD"), rises, "needs the paper's recipe, because the short one has no drop"
    ),
    "MMCE is calibrated no better than CE (ECE, points)": gap_claim(
        "no better", {"mmce": ("mmce", "ce", "ece")}, sign=1, always=False
    ),
    "label smoothing and mixup have the lowest error and a higher ECE than CE": GroupClaim(
        gap_claim("yes", SMOOTHING).said, smoothing
    ),
    **{
        f"the spread of γ over the test images grows during training ({method})": GroupClaim(
            _says("grows"), partial(spread_grows, method=method)
        )
        for method in (OWN, "flg-sece-published")
    },
    "FLγ-SECE keeps a low MCE at every number of bins": GroupClaim(
        _says("lower than other methods"), partial(ranks, fields={f"mce/{bins}": f"{bins}:" for bins in SWEEP})
    ),
    "|·|/τ keeps γ positive better than min-max, sigmoid, relu and softplus (ECE, points)": gap_claim(
        "better across data sets",
        {f"|·| − {name}": ("flg-sece-published", f"published-{name}", "ece") for name in POSITIVE},
        always=False,
    ),
    "FLγ-SECE has the lowest calibration errors of the paper's methods": GroupClaim(
        _printed_ranks, partial(ranks, fields=CALIBRATION), always=True
    ),
    "TS lowers the calibration errors of CE (points)": gap_claim(
        "lowers them", {name: ("ce-ts", "ce", metric) for metric, name in CALIBRATION.items()}
    ),
    "Focal and FLSD are calibrated better than CE (ECE, points)": gap_claim(
        "improve calibration in general", {"focal": ("focal", "ce", "ece"), "flsd": ("flsd", "ce", "ece")}
    ),
    "FLSD has a high MCE (minus CE's, points)": gap_claim("high", {"MCE": ("flsd", "ce", "mce")}, sign=1),
    "FLγ-DECE and FLγ-SECE have a lower ECE than other methods at every number of bins": GroupClaim(
        _says("much lower, from 10 to 1,000 bins"), ece_over_bins, f"needs {' and '.join(GAMMA_NETS)}", always=True
    ),
    "the ECE of FLγ-SECE changes least with the number of bins": GroupClaim(_says("stable"), ece_growth, always=True),
    "with SECE, γ-Net has a lower error and lower calibration errors (Table 2; FLγ-SECE − FLγ, points)": gap_claim(
        "both improve", TABLE_2, table=2
    ),
    "no method of Table 3 has both a lower ECE and a lower error than FLγ-SECE": GroupClaim(
        _printed_table_3, table_3, NEEDS_TABLE_3, always=True
    ),
}
"""What the paper says about trained networks; the last eight are about its own tables."""

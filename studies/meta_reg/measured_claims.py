"""Check the paper's claims about trained networks, with our records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from calibrant.methods.catalogue import RECIPES
from calibrant.metrics import Estimate
from calibrant.report import format_number
from studies.common.verdicts import difference
from studies.meta_reg.claims import Claim
from studies.meta_reg.groups import RunGroup
from studies.meta_reg.noisy import has_noisy_labels
from studies.meta_reg.paper import claimed_gains, paper, printed
from studies.meta_reg.table_claims import JUDGES, MISSING, common_means, in_points, rank, remark, seeds_in_words
from studies.meta_reg.targets import PRINTED, SWEEP
from studies.meta_reg.variants import POSITIVE

WINDOW = 10
"""Number of epochs over which the ECE before a drop of the learning rate is averaged."""
SMOOTHED = ("ls-0.05", "ls-0.1", "mixup")
STILL = 1e-6
"""Up to this standard deviation, γ is still the same for all images."""


def measured(found: Sequence[RunGroup]) -> list[Claim]:
    """The claims that need trained networks: one row per setup that can decide a claim, or one row "not yet measured".

    What the paper says about its tables has a row for each data set of the targets, run or not. Networks trained on
    noisy labels are left out, because the paper has none.
    """
    own = [group for group in found if not has_noisy_labels(group.dataset)]
    return [gains(own), *(claim for judge in (*_JUDGES, *JUDGES) for claim in _known(judge, own))]


def _known(judge: Callable[[RunGroup], Claim], found: Sequence[RunGroup]) -> list[Claim]:
    claims = {group.name: judge(group) for group in found}
    known = [c for name, c in claims.items() if c.measured != MISSING or (judge in JUDGES and name in PRINTED)]
    if known or not claims:
        return known
    first = next(iter(claims.values()))
    return [replace(first, statement=first.statement.partition(": ")[2])]


def gains(found: Sequence[RunGroup]) -> Claim:
    """CE-DECE minus FLγ-SECE, as a mean over the data sets with the short recipe."""
    names, said = {"ece": "ECE", "mce": "MCE", "ace": "ACE"}, claimed_gains()
    pairs = {
        g.name: {m: difference(g.records, m, g.dataset, "ce-dece", "flg-sece") for m in names}
        for g in found
        if g.records[0]["recipe"] == "short"
    }
    known = {name: own for name, own in pairs.items() if not any(math.isnan(gap.value) for gap in own.values())}
    means = {m: float(np.mean([own[m].value for own in known.values()])) for m in names} if known else {}
    text = ", ".join(f"{names[m]} {format_number(100 * value, 2)}" for m, value in means.items())
    each = {f"{where} {names[m]}": gap for where, own in known.items() for m, gap in own.items()}
    parts = "; ".join(f"{where} {in_points(gap)}" for where, gap in each.items())
    smaller = [names[m] for m, value in means.items() if value < said[m]]
    return Claim(
        "FLγ-SECE has a lower ECE, MCE and ACE than CE-DECE, mean over data sets (gain in points)",
        f"{', '.join(f'{names[m]} {100 * value:g}' for m, value in said.items())} over three data sets",
        f"{text} over {', '.join(known)}" if known else MISSING,
        all(value > 0 for value in means.values()) if known else None,
        remark(
            "holds if all three mean gains are positive, whatever their size"
            + (f"; smaller than the paper's: {', '.join(smaller)}" if smaller else "")
            + (f"; gains by data set: {parts}" if parts else ""),
            each,
        ),
    )


def rises(group: RunGroup) -> Claim:
    """ECE by epoch around the first drop of the learning rate, for the paper's methods and variants of γ-Net."""
    theirs = paper()["table1"]["cifar10"]
    methods = [m for m in group.methods if (m in theirs or m.startswith("flg")) and not m.endswith("-ts")]
    means = {m: np.mean([around_first_drop(r.get("curve", {})) for r in group.of(m)], axis=0) for m in methods}
    found = {m: own for m, own in means.items() if not np.isnan(own).any()}
    known = bool(found) and group.records[0]["recipe"] == "paper"
    rise = {m: float(own[2] - own[1]) for m, own in found.items()}
    most = max(rise, key=lambda m: rise[m], default="")
    text = "; ".join(f"{m} {', '.join(f'{100 * value:.2f}' for value in own)}" for m, own in found.items())
    return Claim(
        f"{group.name}: test ECE rises after the first drop of the learning rate, most for FLSD (per cent)",
        "rises for all, most for FLSD",
        f"{text}; largest rise: {most}" if known else MISSING,
        (min(rise.values()) > 0 and most == "flsd") if known and "flsd" in rise else None,
        f"means of the last {WINDOW} epochs before the drop, and of the first and the second half of the epochs "
        "between the two drops; holds if the third is above the second for all methods, most for FLSD"
        if known
        else "needs the paper's recipe, because the short one has no drop",
    )


def around_first_drop(curve: dict[str, list[float]]) -> tuple[float, float, float]:
    """Mean ECE before the first drop of the paper's recipe, and in both halves of the epochs until the second drop.

    The first mean is over ``WINDOW`` epochs. All are NaN if the curve lacks some of these epochs. Halves do not depend
    on how long the ECE takes to settle after the drop.
    """
    first, second = RECIPES["paper"].milestones
    middle = (first + second) // 2
    ece, when = np.array(curve.get("ece", [])), np.array(curve.get("epoch", []))
    spans = ((first - WINDOW, first), (first, middle), (middle, second))
    parts = [ece[(when > begin) & (when <= end)] for begin, end in spans]
    if any(len(part) != end - begin for part, (begin, end) in zip(parts, spans, strict=True)):
        return math.nan, math.nan, math.nan
    before, early, late = (float(part.mean()) for part in parts)
    return before, early, late


def mmce(group: RunGroup) -> Claim:
    """MMCE against cross-entropy."""
    gap = difference(group.records, "ece", group.dataset, "mmce", "ce")
    known = not math.isnan(gap.value)
    return Claim(
        f"{group.name}: MMCE is calibrated no better than CE (ECE, points)",
        _said("no better", group.dataset, ["mmce"]),
        in_points(gap) if known else MISSING,
        gap.value >= 0 if known else None,
        remark("holds if the mean difference is not below zero", {"mmce": gap}),
    )


def smoothing(group: RunGroup) -> Claim:
    """Label smoothing and mixup: error and ECE."""
    run = [m for m in SMOOTHED if m in group.methods]
    theirs = [m for m in group.methods if m in paper()["table1"]["cifar10"]]
    if not run or "ce" not in group.methods:
        statement = f"{group.name}: label smoothing and mixup have the lowest error and a higher ECE than CE"
        return Claim(statement, "yes", MISSING, None)
    errors = common_means(group, theirs, "error")
    best = min(errors, key=lambda m: errors[m])
    gaps = {m: difference(group.records, "ece", group.dataset, m, "ce") for m in run}
    text = "; ".join(f"{m} {in_points(gap)}" for m, gap in gaps.items())
    return Claim(
        f"{group.name}: label smoothing and mixup have the lowest error and a higher ECE than CE",
        _said("yes", group.dataset, run),
        f"lowest error: {best}; ECE minus ce's, points: {text}",
        best in SMOOTHED and all(gap.value > 0 for gap in gaps.values()),
        remark(
            f"lowest of the paper's {len(theirs)} methods that were run, {seeds_in_words(group, theirs)}; holds if it "
            "is one of these three and all mean differences are above zero",
            gaps,
        ),
    )


def spread_grows(group: RunGroup, method: str = "flg-sece") -> Claim:
    """The standard deviation of γ on the test images by epoch."""
    runs = [r["curve"]["gamma_std"] for r in group.of(method) if r.get("curve", {}).get("gamma_std")]
    statement = f"{group.name}: the spread of γ over the test images grows during training ({method})"
    if not runs:
        return Claim(statement, "grows", MISSING, None)
    spreads = np.mean([run[: min(map(len, runs))] for run in runs], axis=0)
    moving = int(np.argmax(spreads > STILL))  # 0 if it is never above: then the spread does not grow
    begin, last = float(spreads[moving]), float(spreads[-1])
    held = f"0 until epoch {moving}, where γ is held at its start; " if moving else ""
    return Claim(
        statement,
        "grows",
        f"{held}{begin:.3f} after epoch {moving + 1}, {last:.3f} after the last",
        last > begin,
        "holds if it is larger after the last epoch than after the first epoch in which γ moves; means over seeds",
    )


def low_mce(group: RunGroup) -> Claim:
    """MCE of FLγ-SECE among the paper's methods, by number of bins."""
    rivals = [m for m in group.methods if m in paper()["table1"]["cifar10"]]
    statement = f"{group.name}: FLγ-SECE keeps a low MCE at every number of bins"
    if "flg-sece" not in rivals or len(rivals) < 2:
        return Claim(statement, "lower than other methods", MISSING, None)
    ranks = {str(bins): rank("flg-sece", common_means(group, rivals, f"mce/{bins}")) for bins in SWEEP}
    text = ", ".join(f"{bins}: {place}" for bins, place in ranks.items())
    return Claim(
        statement,
        "lower than other methods",
        f"rank among {len(rivals)} by number of bins: {text}",
        max(ranks.values()) == 1,
        f"means {seeds_in_words(group, rivals)}; holds if every rank is 1",
    )


def positivity(group: RunGroup) -> Claim:
    """Section 4.1: the absolute value against its alternatives."""
    run = {name: f"published-{name}" for name in POSITIVE if f"published-{name}" in group.methods}
    statement = f"{group.name}: |·|/τ keeps γ positive better than min-max, sigmoid, relu and softplus (ECE, points)"
    if not run or "flg-sece-published" not in group.methods:
        needs = (
            "needs flg-sece-published and the variants published-min-max, -sigmoid, -relu and -softplus in one setup"
        )
        return Claim(statement, "better across data sets", MISSING, None, needs)
    gaps: dict[str, Estimate] = {
        n: difference(group.records, "ece", group.dataset, "flg-sece-published", m) for n, m in run.items()
    }
    return Claim(
        statement,
        "better across data sets",
        "; ".join(f"|·| − {name}: {in_points(gap)}" for name, gap in gaps.items()),
        all(gap.value < 0 for gap in gaps.values()),
        remark("holds if all mean differences are below zero", gaps),
    )


def _said(words: str, dataset: str, methods: Sequence[str]) -> str:
    """What the paper says, and what its Table 1 says: the ECE of some methods minus that of CE, in points."""
    own, rival = {m: printed(dataset, m, "ece") for m in methods}, printed(dataset, "ce", "ece")
    gaps = {m: 100 * (cell.mean - rival.mean) for m, cell in own.items() if cell and rival}
    table = ", ".join(f"{m} {format_number(gap, 2)}" for m, gap in gaps.items())
    return f"{words} (ECE minus CE's in its Table 1, points: {table})" if gaps else words


_JUDGES: tuple[Callable[[RunGroup], Claim], ...] = (
    rises,
    mmce,
    smoothing,
    spread_grows,
    partial(spread_grows, method="flg-sece-published"),
    low_mce,
    positivity,
)

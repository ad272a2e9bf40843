"""Check the paper's claims about trained networks, with our records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from calibrant.experiments.common.shared import count
from calibrant.experiments.common.verdicts import difference, undecided
from calibrant.experiments.meta_reg.claims import Claim
from calibrant.experiments.meta_reg.groups import RunGroup, times
from calibrant.experiments.meta_reg.noisy import has_noisy_labels
from calibrant.experiments.meta_reg.paper import paper
from calibrant.experiments.meta_reg.targets import SWEEP
from calibrant.experiments.meta_reg.variants import POSITIVE
from calibrant.methods.images import RECIPES
from calibrant.metrics import Estimate
from calibrant.report import format_number

WINDOW = 10
"""Number of epochs over which the ECE around a drop of the learning rate is averaged."""
SMOOTHED = ("ls-0.05", "ls-0.1", "mixup")
MISSING = "not yet measured"
STILL = 1e-6
"""Up to this standard deviation, γ is still the same for all images."""


def measured(found: Sequence[RunGroup]) -> list[Claim]:
    """The claims that need trained networks: one row per setup that can decide a claim, or one row "not yet measured".

    Networks trained on noisy labels are left out, because the paper has none.
    """
    own = [group for group in found if not has_noisy_labels(group.dataset)]
    return [gains(own), *(claim for judge in _JUDGES for claim in _known(judge, own))]


def _known(judge: Callable[[RunGroup], Claim], found: Sequence[RunGroup]) -> list[Claim]:
    claims = [judge(group) for group in found]
    known = [claim for claim in claims if claim.measured != MISSING]
    if known or not claims:
        return known
    return [replace(claims[0], statement=claims[0].statement.partition(": ")[2])]


def gains(found: Sequence[RunGroup]) -> Claim:
    """CE-DECE minus FLγ-SECE, as a mean over the data sets with the short recipe."""
    pairs = {
        g.name: [difference(g.records, m, g.dataset, "ce-dece", "flg-sece").value for m in ("ece", "mce", "ace")]
        for g in found
        if g.records[0]["recipe"] == "short"
    }
    known = {name: values for name, values in pairs.items() if not any(map(math.isnan, values))}
    means = np.mean(list(known.values()), axis=0) if known else []
    text = ", ".join(f"{n} {100 * v:+.2f}" for n, v in zip(("ECE", "MCE", "ACE"), means, strict=False))
    return Claim(
        "Gain of FLγ-SECE over CE-DECE in ECE, MCE and ACE, mean over data sets (points)",
        "4.198, 14.37, 3.917 over three data sets",
        f"{text} over {', '.join(known)}" if known else MISSING,
        bool(np.all(np.asarray(means) > 0)) if known else None,
        "holds if all three mean gains are positive; paired over seeds",
    )


def rises(group: RunGroup) -> Claim:
    """ECE by epoch around the first drop of the learning rate, for the paper's methods and variants of γ-Net."""
    printed = paper()["table1"]["cifar10"]
    methods = [m for m in group.methods if (m in printed or m.startswith("flg")) and not m.endswith("-ts")]
    means = {m: np.mean([around_first_drop(r.get("curve", {})) for r in group.of(m)], axis=0) for m in methods}
    found = {m: own for m, own in means.items() if not np.isnan(own).any()}
    known = bool(found) and group.records[0]["recipe"] == "paper"
    rise = {m: float(own[2] - own[1]) for m, own in found.items()}
    text = "; ".join(f"{m} {', '.join(f'{100 * value:.2f}' for value in own)}" for m, own in found.items())
    return Claim(
        f"{group.name}: test ECE rises after the first drop of the learning rate, most for FLSD (per cent)",
        "rises for all, most for FLSD",
        text if known else MISSING,
        (min(rise.values()) > 0 and max(rise, key=lambda m: rise[m]) == "flsd") if known and "flsd" in rise else None,
        f"means of {WINDOW} epochs before the drop, after it, and before the second drop; holds if the third is above "
        "the second for all methods, most for FLSD"
        if known
        else "needs the paper's recipe, because the short one has no drop",
    )


def around_first_drop(curve: dict[str, list[float]]) -> tuple[float, float, float]:
    """Mean ECE before the first drop of the paper's recipe, after it, and before the second; NaN without these epochs.

    Each mean is over ``WINDOW`` epochs.
    """
    first, second = RECIPES["paper"].milestones
    ece, when = np.array(curve.get("ece", [])), np.array(curve.get("epoch", []))
    windows = [ece[(when > end - WINDOW) & (when <= end)] for end in (first, first + WINDOW, second)]
    before, after, later = (float(own.mean()) if len(own) == WINDOW else math.nan for own in windows)
    return before, after, later


def mmce(group: RunGroup) -> Claim:
    """MMCE against cross-entropy."""
    gap = difference(group.records, "ece", group.dataset, "mmce", "ce")
    known = not math.isnan(gap.value)
    return Claim(
        f"{group.name}: MMCE is calibrated no better than CE (ECE, points)",
        "no better",
        _points(gap) if known else MISSING,
        gap.value >= 0 if known else None,
        _remark("holds if the mean difference is not below zero", {"mmce": gap}),
    )


def smoothing(group: RunGroup) -> Claim:
    """Label smoothing and mixup: error and ECE."""
    run = [m for m in SMOOTHED if m in group.methods]
    printed = [m for m in group.methods if m in paper()["table1"]["cifar10"]]
    if not run or "ce" not in group.methods:
        statement = f"{group.name}: label smoothing and mixup have the lowest error and a higher ECE than CE"
        return Claim(statement, "yes", MISSING, None)
    seeds = set.intersection(*({r["seed"] for r in group.of(m)} for m in printed))
    errors = {m: float(np.mean([r["error"] for r in group.of(m) if not seeds or r["seed"] in seeds])) for m in printed}
    best = min(errors, key=lambda m: errors[m])
    gaps = {m: difference(group.records, "ece", group.dataset, m, "ce") for m in run}
    text = "; ".join(f"{m} {_points(gap)}" for m, gap in gaps.items())
    return Claim(
        f"{group.name}: label smoothing and mixup have the lowest error and a higher ECE than CE",
        "yes",
        f"lowest error: {best}; ECE minus ce's, points: {text}",
        best in SMOOTHED and all(gap.value > 0 for gap in gaps.values()),
        _remark(
            f"lowest of the paper's {len(printed)} methods that were run, "
            + (f"over their {count(len(seeds), 'common seed')}" if seeds else "over all seeds")
            + "; holds if it is one of these three and all mean differences are above zero",
            gaps,
        ),
    )


def spread_grows(group: RunGroup) -> Claim:
    """The standard deviation of γ on the test images by epoch."""
    runs = [r["curve"]["gamma_std"] for r in group.of("flg-sece") if r.get("curve", {}).get("gamma_std")]
    statement = f"{group.name}: the spread of γ over the test images grows during training"
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
    means = {m: [float(np.mean(group.values(m, f"mce/{b}"))) for b in SWEEP] for m in rivals}
    ranks = [sorted(rivals, key=lambda m, k=k: means[m][k]).index("flg-sece") + 1 for k in range(len(SWEEP))]  # type: ignore[misc]
    text = ", ".join(f"{b}: {rank}" for b, rank in zip(SWEEP, ranks, strict=True))
    return Claim(
        statement,
        "lower than other methods",
        f"rank among {len(rivals)} by number of bins: {text}",
        max(ranks) == 1,
        "holds if every rank is 1",
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
        "; ".join(f"|·| − {name}: {_points(gap)}" for name, gap in gaps.items()),
        all(gap.value < 0 for gap in gaps.values()),
        _remark("holds if all mean differences are below zero", gaps),
    )


def _remark(rule: str, gaps: Mapping[str, Estimate]) -> str:
    """The rule of a verdict, and the differences whose intervals contain zero or that have no interval."""
    single = [name for name, gap in gaps.items() if math.isnan(gap.low) and not math.isnan(gap.value)]
    alone = f"{', '.join(single)}: one seed, so no interval" if single else ""
    return "; ".join(part for part in (rule, undecided(gaps, 0.0), alone) if part)


_JUDGES = (rises, mmce, smoothing, spread_grows, low_mce, positivity)


def _points(value: Estimate) -> str:
    return format_number(times(value, 100), 2)

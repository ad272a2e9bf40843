"""The report on flipped labels: targets, and one table per rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.metrics import Estimate
from calibrant.report import Column, Report, Results, Verdict
from studies.common import words
from studies.common.shared import failures, foot
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
    not_above,
    not_significantly_above_zero,
    pivot,
)

JUDGED = ("blobs-1.3", "blobs-1.7", "spirals-2.5", "spirals-3.5")
"""The sets of the targets. BAC is shown but not judged, because its inputs determine its labels."""
GAIN, AUROC = 0.04, 0.9
COLUMNS = {
    "accuracy": Column("accuracy", "high"),
    "nll": Column("NLL", "low"),
    "ece15": Column("ECE-15", "low"),
    "true_ece": Column("true ECE", "low"),
    "suspects_auroc": Column("AUROC of suspects", "high", note="AUROC of the suspicion for finding flipped labels"),
    "weight_flipped": Column("w of flipped", digits=2, note="mean weight of training samples with a wrong label"),
    "weight_kept": Column("w of others", digits=2, note="mean weight of training samples with a right label"),
}


def noise_targets(records: Records, rates: Sequence[float]) -> list[Verdict]:
    """Judge the targets on every set of ``JUDGED`` and at each rate."""
    at = {rate: [r for r in records if r["rate"] == rate and r["dataset"] in JUDGED] for rate in rates}
    every = [(rate, name) for rate in rates for name in datasets(at[rate])]
    flipped = [case for case in every if case[0]]
    blobs = [case for case in flipped if case[1].startswith("blobs")]

    def gap(metric: str, method: str, other: str, case: tuple[float, str]) -> Estimate:
        return difference(at[case[0]], metric, case[1], method, other)

    def better(case: tuple[float, str]) -> str:
        """The rival with the lower mean NLL; a rival with a failed training has no mean and does not count."""
        means = {name: mean(at[case[0]], "nll", case[1], name).value for name in ("standard-stopped", "bo4sc")}
        return min(means, key=lambda name: math.inf if math.isnan(means[name]) else means[name])

    def never_above(own: str) -> Verdict:
        losses = {case: gap("nll", own, rivals[case], case) for case in every}
        return judge(
            f"{own}: NLL not significantly above the better of bo4sc's and standard-stopped's, clean and flipped "
            "(paired difference)",
            [Case(f"{_where(c)} ({rivals[c]})", d, not_significantly_above_zero(d)) for c, d in losses.items()],
        )

    gains = {case: gap("accuracy", "bo4sc", "standard", case) for case in flipped}
    losses = {case: gap("nll", "bo4sc", "standard", case) for case in flipped}
    areas = {case: mean(at[case[0]], "suspects_auroc", case[1], "bo4sc") for case in blobs}
    rivals = {case: better(case) for case in every}
    return [
        judge(
            f"bo4sc: accuracy at least {GAIN} above standard's with flipped labels (difference)",
            [Case(_where(case), gain, at_least(gain, GAIN)) for case, gain in gains.items()],
        ),
        judge(
            "bo4sc: NLL below standard's with flipped labels (difference)",
            [Case(_where(case), loss, not_above(loss, 0.0)) for case, loss in losses.items()],
        ),
        judge(
            f"bo4sc: AUROC of suspects at least {AUROC} on blobs",
            [Case(_where(case), area, at_least(area, AUROC)) for case, area in areas.items()],
        ),
        *(never_above(own) for own in ("self-calibrated", POOLED) if any(r["method"] == own for r in records)),
    ]


def with_all_seeds(records: Records) -> list[Mapping[str, Any]]:
    """The records of methods that were run with all seeds of their set; means over other seeds are not comparable."""
    seeds: dict[str, set[int]] = {}
    own: dict[tuple[str, str], set[int]] = {}
    for r in records:
        seeds.setdefault(r["dataset"], set()).add(r["seed"])
        own.setdefault((r["dataset"], r["method"]), set()).add(r["seed"])
    return [r for r in records if own[r["dataset"], r["method"]] == seeds[r["dataset"]]]


def _where(case: tuple[float, str]) -> str:
    return f"{case[1]} {case[0]:.0%}"


def tell(results: Results) -> Report:
    """Build the report."""
    records, config = results.records, results.config
    report = Report(
        "Flipped training labels",
        f"{len(config['seeds'])} seeds, mean and 95 % interval. Validation and test labels are clean. Every method has "
        "its default setting, for all sets and rates.",
    )
    needed = {"standard", "standard-stopped", "bo4sc", "self-calibrated"}
    if needed <= set(config["methods"]):
        report.section("Targets")
        report.verdicts(noise_targets(records, config["rates"]))
    report.text(words.UNEQUAL)
    for rate in config["rates"]:
        own = [r for r in records if r["rate"] == rate]
        report.section(f"{rate:.0%} flipped" if rate else "Clean labels")
        rows = [
            [name, method, *(mean(own, metric, name, method) for metric in COLUMNS), _noise_chosen(own, name, method)]
            for name in config["sets"]
            for method in config["methods"]
        ]
        glance = pivot(with_all_seeds(own), "nll")
        report.table(glance.columns, glance.rows, "NLL on clean test samples.", exempt=glance.exempt)
        taken = Column(
            "label noise chosen", digits=2, note="share of seeds for which the method chose the label-noise candidate"
        )
        with report.details("All metrics"):
            report.table(["set", "method", *COLUMNS.values(), taken], rows, group="set", exempt=[ENSEMBLE])
    failures(report, records, "Their means over seeds are missing.")
    foot(report, results)
    return report


def _noise_chosen(records: Records, dataset: str, method: str) -> float | None:
    found = [r["candidate"] for r in records if r["dataset"] == dataset and r["method"] == method and r["candidate"]]
    return sum(candidate == "label noise" for candidate in found) / len(found) if found else None

"""Flipped training labels and a clean validation part: who finds the wrong labels, and who stays right.

A share of the training labels is changed to another class; validation and test labels are as they were. Every method of
the one table runs at its default: ``bo4sc`` with one setting for all sets and rates, not a grid's choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import roc_auc_score

from calibrant.data import SETS
from calibrant.experiments import words
from calibrant.experiments.parts import in_parts
from calibrant.experiments.records import Prepared, prepare, resolve_device
from calibrant.experiments.runs import few_threads, run_all
from calibrant.experiments.shared import SEEDS, checked_methods, failures, foot, made, read_own
from calibrant.experiments.table1 import pivot
from calibrant.experiments.targets import (
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
)
from calibrant.methods import METHODS, Fitted, suspicion
from calibrant.metrics import Estimate
from calibrant.report import Column, Report, Results, Verdict, write_results

JUDGED = ("blobs-1.3", "blobs-1.7", "spirals-2.5", "spirals-3.5")
"""The sets that the targets are about; BAC, whose labels are a function of the inputs, is shown beside them."""
GAIN, AUROC = 0.04, 0.9
COLUMNS = {
    "accuracy": Column("accuracy", "high"),
    "nll": Column("NLL", "low"),
    "ece15": Column("ECE-15", "low"),
    "true_ece": Column("true ECE", "low"),
    "suspects_auroc": Column("AUROC of suspects", "high", note="of suspicion against the labels that were flipped"),
    "weight_flipped": Column("w of flipped", digits=2, note="mean weight of the training samples with a wrong label"),
    "weight_kept": Column("w of others", digits=2, note="mean weight of the training samples with their own label"),
}


def run(
    *,
    rates: Sequence[float] = (0.2, 0.4),
    seeds: int = SEEDS,
    out: str | Path = "out/noise",
    device: str = "auto",
    sets: Sequence[str] = tuple(SETS),
    methods: Sequence[str] | None = None,
    source: str | Path | None = None,
) -> Path:
    """Train every method at every rate, clean labels first; returns the path of the report.

    ``source`` is a result file of this experiment: the report is made from it, and nothing is trained.
    """
    if source is not None:
        return write_report(Path(source), Path(out))
    for rate in rates:
        if not 0 <= rate <= 1:
            raise ValueError(f"rates are shares of labels to flip, between 0 and 1; got {rate}.")
    methods = checked_methods(methods, METHODS)
    levels = [0.0, *sorted(set(rates) - {0.0})]
    where = resolve_device(device)
    parts = in_parts(train_and_measure, sets, device=where, rates=levels, seeds=seeds, methods=methods)
    config = {
        "experiment": "noise",
        "rates": levels,
        "seeds": list(range(seeds)),
        "sets": list(sets),
        "methods": {name: repr(METHODS[name].method) for name in methods},
        "device": str(where),
        **made(),
    }
    order = {name: position for position, name in enumerate([*sets, *methods])}
    records = [record for part in parts for record in part]
    records.sort(key=lambda r: (order[r["dataset"]], order[r["method"]], r["rate"], r["seed"]))
    return write_report(write_results(Path(out) / "results.json", config, records), Path(out))


def train_and_measure(
    *, sets: Sequence[str], device: torch.device, rates: Sequence[float], seeds: int, methods: Sequence[str]
) -> list[dict[str, Any]]:
    """Records of these sets: every method at every rate."""
    cases = [(rate, prepare(name, seed, rate)) for rate in rates for name in sets for seed in range(seeds)]
    plan = [(name, METHODS[name].method, prepared) for name in methods for _, prepared in cases]
    runs = run_all(plan, device=device)
    with few_threads():
        return [
            {**trained.record(), "rate": rate, **suspects(trained.fitted, trained.prepared)}
            for trained, (rate, _) in zip(runs, cases * len(methods), strict=True)
        ]


def write_report(results: Path, out: Path) -> Path:
    """Make the report from a result file alone, and print it."""
    report = tell(read_own(results, "noise"))
    print(report.to_markdown())
    return report.write(out)


def suspects(fitted: Fitted, prepared: Prepared) -> dict[str, Any]:
    """How well wrong labels are found, where any were flipped; and which candidate the self-calibrated method took.

    Suspicion is the method's own where it has one, ``1 − w_i·p(y_i | x_i)`` where it has weights, and
    ``1 − p(y_i | x_i)`` otherwise. ``weight_flipped`` and ``weight_kept`` are mean weights of wrong and right labels.
    """
    found: dict[str, Any] = dict.fromkeys(("suspects_auroc", "weight_flipped", "weight_kept"))
    found["candidate"] = fitted.extras.get("candidate")
    if fitted.failure or not prepared.flipped.any() or prepared.flipped.all():
        return found
    train, scores, weights = prepared.task.train, *map(fitted.extras.get, ("suspicion", "sample_weights"))
    if weights is not None:
        found["weight_flipped"] = weights[prepared.flipped].mean().item()
        found["weight_kept"] = weights[~prepared.flipped].mean().item()
    if scores is None:
        given = torch.ones(len(train)) if weights is None else weights
        scores = suspicion(given, fitted.probs(train.inputs), train.labels)
    return found | {"suspects_auroc": float(roc_auc_score(prepared.flipped, scores.numpy()))}


def noise_targets(records: Records, rates: Sequence[float]) -> list[Verdict]:
    """Judged on every synthetic set that was run, at each rate."""
    at = {rate: [r for r in records if r["rate"] == rate and r["dataset"] in JUDGED] for rate in rates}
    every = [(rate, name) for rate in rates for name in datasets(at[rate])]
    flipped = [case for case in every if case[0]]
    blobs = [case for case in flipped if case[1].startswith("blobs")]

    def gap(metric: str, method: str, other: str, case: tuple[float, str]) -> Estimate:
        return difference(at[case[0]], metric, case[1], method, other)

    def better(case: tuple[float, str]) -> str:
        """The rival of lower mean NLL; one without a mean, because a training of it failed, is none."""
        means = {name: mean(at[case[0]], "nll", case[1], name).value for name in ("standard-stopped", "bo4sc")}
        return min(means, key=lambda name: math.inf if math.isnan(means[name]) else means[name])

    gains = {case: gap("accuracy", "bo4sc", "standard", case) for case in flipped}
    losses = {case: gap("nll", "bo4sc", "standard", case) for case in flipped}
    areas = {case: mean(at[case[0]], "suspects_auroc", case[1], "bo4sc") for case in blobs}
    rivals = {case: better(case) for case in every}
    ours = {case: gap("nll", "self-calibrated", rivals[case], case) for case in every}
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
        judge(
            "self-calibrated: NLL not significantly above the better of bo4sc's and standard-stopped's, clean and "
            "flipped (paired difference)",
            [Case(f"{_where(c)} ({rivals[c]})", loss, not_significantly_above_zero(loss)) for c, loss in ours.items()],
        ),
    ]


def _where(case: tuple[float, str]) -> str:
    return f"{case[1]} {case[0]:.0%}"


def tell(results: Results) -> Report:
    """The targets, and one table for each rate."""
    records, config = results.records, results.config
    report = Report(
        "Flipped training labels",
        f"{len(config['seeds'])} seeds, mean and 95 % interval. Validation and test labels are clean. Every method has "
        "one setting for all sets and rates, the default of its id.",
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
        glance = pivot(own, "nll")
        report.table(glance.columns, glance.rows, "NLL on clean test samples.", exempt=glance.exempt)
        taken = Column("label noise chosen", digits=2, note="share of seeds in which that candidate was taken")
        with report.details("Every measure"):
            report.table(["set", "method", *COLUMNS.values(), taken], rows, group="set", exempt=[ENSEMBLE])
    failures(report, records, "Means over their seeds are missing.")
    foot(report, results)
    return report


def _noise_chosen(records: Records, dataset: str, method: str) -> float | None:
    found = [r["candidate"] for r in records if r["dataset"] == dataset and r["method"] == method and r["candidate"]]
    return sum(candidate == "label noise" for candidate in found) / len(found) if found else None

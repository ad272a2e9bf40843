"""Train with flipped labels and a clean validation part: ``python -m studies.label_noise``.

A share of the training labels is changed to another class; validation and test labels stay clean. Every registered
method runs with its default setting. ``bo4sc`` therefore has one setting for all sets and rates, not that of a search.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from sklearn.metrics import roc_auc_score

from calibrant.methods import Fitted, suspicion
from calibrant.metrics import Estimate
from studies import script
from studies.common.records import Prepared, prepare, resolve_device
from studies.common.runs import run_all
from studies.common.synthetic import POOLED, chosen_methods, synthetic_methods
from studies.common.verdicts import (
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
from studies.report import Record, Verdict, to_markdown
from studies.sets import SETS

JUDGED = ("blobs-1.3", "blobs-1.7", "spirals-2.5", "spirals-3.5")
"""The sets of the targets. BAC is shown but not judged, because its inputs determine its labels."""
GAIN, AUROC = 0.04, 0.9


def measure(runs: Sequence[script.Run], device: str) -> list[Record]:
    """The records of runs on one set, whose networks train together."""
    methods = synthetic_methods()
    plan = [(run["method"], methods[run["method"]], prepare(run["dataset"], run["seed"], run["rate"])) for run in runs]
    finished = run_all(plan, device=resolve_device(device))
    return [
        {**done.record(), "rate": run["rate"], **suspects(done.fitted, done.prepared)}
        for run, done in zip(runs, finished, strict=True)
    ]


def suspects(fitted: Fitted, prepared: Prepared) -> dict[str, Any]:
    """How well the method finds flipped labels, and which candidate the self-calibrated method chose.

    The score is the method's own suspicion if it has one, else ``1 − w_i·p(y_i | x_i)`` if it has weights, else
    ``1 − p(y_i | x_i)``. ``weight_flipped`` and ``weight_kept`` are the mean weights of wrong and of right labels. The
    values are None if no label was flipped.
    """
    measured: dict[str, Any] = dict.fromkeys(("suspects_auroc", "weight_flipped", "weight_kept"))
    measured["candidate"] = fitted.extras.get("candidate")
    if fitted.failure or not prepared.flipped.any() or prepared.flipped.all():
        return measured
    train, scores, weights = prepared.task.train, *map(fitted.extras.get, ("suspicion", "sample_weights"))
    if weights is not None:
        measured["weight_flipped"] = weights[prepared.flipped].mean().item()
        measured["weight_kept"] = weights[~prepared.flipped].mean().item()
    if scores is None:
        trust = torch.ones(len(train)) if weights is None else weights
        scores = suspicion(trust, fitted.probs(train.inputs), train.labels)
    return measured | {"suspects_auroc": float(roc_auc_score(prepared.flipped, scores.numpy()))}


def noise_targets(records: Records) -> list[Verdict]:
    """Judge the targets on every set of ``JUDGED`` and at each rate."""
    rates = rates_of(records)
    at = {rate: [r for r in at_rate(records, rate) if r["dataset"] in JUDGED] for rate in rates}
    every = [(rate, name) for rate in rates for name in datasets(at[rate])]
    flipped = [case for case in every if case[0]]

    def gap(metric: str, method: str, other: str, case: tuple[float, str]) -> Estimate:
        return difference(at[case[0]], metric, case[1], method, other)

    def better(case: tuple[float, str]) -> str:
        """The rival with the lower mean NLL; a rival with a failed training has no mean and does not count."""
        means = {name: mean(at[case[0]], "nll", case[1], name).value for name in ("standard-stopped", "bo4sc")}
        return min(means, key=lambda name: math.inf if math.isnan(means[name]) else means[name])

    def where(case: tuple[float, str]) -> str:
        return f"{case[1]} {case[0]:.0%}"

    def never_above(method: str) -> Verdict:
        losses = {case: gap("nll", method, rivals[case], case) for case in every}
        return judge(
            f"{method}: NLL not significantly above the better of bo4sc's and standard-stopped's, clean and flipped "
            "(paired difference)",
            [Case(f"{where(c)} ({rivals[c]})", d, not_significantly_above_zero(d)) for c, d in losses.items()],
        )

    gains = {case: gap("accuracy", "bo4sc", "standard", case) for case in flipped}
    losses = {case: gap("nll", "bo4sc", "standard", case) for case in flipped}
    areas = {case: mean(at[case[0]], "suspects_auroc", case[1], "bo4sc") for case in flipped if "blobs" in case[1]}
    rivals = {case: better(case) for case in every}
    return [
        judge(
            f"bo4sc: accuracy at least {GAIN} above standard's with flipped labels (difference)",
            [Case(where(case), gain, at_least(gain, GAIN)) for case, gain in gains.items()],
        ),
        judge(
            "bo4sc: NLL below standard's with flipped labels (difference)",
            [Case(where(case), loss, not_above(loss, 0.0)) for case, loss in losses.items()],
        ),
        judge(
            f"bo4sc: AUROC of suspects at least {AUROC} on blobs",
            [Case(where(case), area, at_least(area, AUROC)) for case, area in areas.items()],
        ),
        *(never_above(name) for name in ("self-calibrated", POOLED) if any(r["method"] == name for r in records)),
    ]


def rates_of(records: Records) -> list[float]:
    """The shares of flipped labels, in rising order."""
    return sorted({r["rate"] for r in records})


def at_rate(records: Records, rate: float) -> list[Record]:
    """The records with this share of flipped labels."""
    return [dict(r) for r in records if r["rate"] == rate]


def with_all_seeds(records: Records) -> list[Record]:
    """The records of methods that were run with all seeds of their set; means over other seeds are not comparable."""
    table = pd.DataFrame(records)
    seeds = table.groupby("dataset")["seed"].transform("nunique")
    seeds_of_method = table.groupby(["dataset", "method"])["seed"].transform("nunique")
    return [dict(r) for r, complete in zip(records, seeds_of_method == seeds, strict=True) if complete]


def tables(records: Records) -> str:
    """NLL on clean test samples, one table for each share of flipped labels."""
    parts = []
    for rate in rates_of(records):
        table = pivot(with_all_seeds(at_rate(records, rate)), "nll")
        parts += [
            f"{100 * rate:g} % of the training labels flipped:" if rate else "Clean labels:",
            to_markdown(table.columns, table.rows, exempt=table.exempt),
        ]
    return "\n\n".join(parts)


def main(words: Sequence[str]) -> None:
    """Make the runs that are not stored, and print the tables and the targets."""
    parser = script.options(__doc__ or "", "results/bo4sc-noise.json")
    parser.add_argument("--rates", nargs="+", type=float, default=[0.2, 0.4], help="shares of labels to flip")
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds, starting at --first-seed")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="+", choices=synthetic_methods(), help=f"default: all but {POOLED}")
    parser.add_argument("--device", default="auto")
    chosen = parser.parse_args(words)
    if not all(0 <= rate <= 1 for rate in chosen.rates):
        parser.error("--rates must be shares of labels to flip, between 0 and 1")
    rates = [0.0, *sorted(set(chosen.rates) - {0.0})]
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    groups = [
        [
            {"dataset": name, "method": method, "rate": rate, "seed": seed}
            for method, rate, seed in itertools.product(chosen_methods(chosen.methods), rates, seeds)
        ]
        for name in chosen.sets
    ]
    order = {"dataset": list(SETS), "method": list(synthetic_methods()), "rate": None, "seed": None}
    work = partial(measure, device=chosen.device)
    records = script.run_missing(chosen, "noise", groups, work, order)
    targets = [[verdict.statement, verdict.shown, verdict.word] for verdict in noise_targets(records)]
    print(tables(records), to_markdown(["target", "measured", "verdict"], targets), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])

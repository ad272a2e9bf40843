"""`studies ablate bo4sc`: measure the effect of each choice in BO4SC and in the self-calibrated method."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd

from calibrant.metrics import mean_interval
from studies.bo4sc.variants import OURS, SGD, SGD_STEPS, STORY, measure, variants
from studies.common.options import Device, Jobs, Option, Seeds, Sets
from studies.common.records import resolve_device
from studies.common.shared import SEEDS, checked_sets, failures, foot
from studies.common.study import Plan, Study
from studies.common.synthetic import synthetic_plan
from studies.common.verdicts import UNMEASURED, shared_difference
from studies.report import Column, Record, Report, Results, by_seed


def plan(
    *,
    seeds: Seeds = SEEDS,
    device: Device = "auto",
    sets: Sets = None,
    only: Annotated[
        Sequence[str] | None, Option("Names of variants; default: all. bo4sc always runs, for comparison.")
    ] = None,
    jobs: Jobs = None,
) -> Plan:
    """Compare variants of BO4SC (hypergradient, outer loss, weights, outer variables) and of self-calibrated."""
    every, sets = variants(), checked_sets(sets)
    if unknown := sorted(set(only or ()) - {v.name for v in every}):
        raise ValueError(f"only must name variants among {', '.join(v.name for v in every)}; got {', '.join(unknown)}.")
    wanted = [v for v in every if only is None or v.name in {*only, "bo4sc"}]
    config: dict[str, Any] = {"seeds": list(range(seeds)), "sets": sets}
    if any(v.name == SGD for v in wanted):
        config["inner_sgd"] = SGD_STEPS
    config["variants"] = {v.name: dataclasses.asdict(v.method) for v in wanted}
    methods = {(dataset, v.name): v.method for v in wanted for dataset in sets}
    return synthetic_plan(methods, range(seeds), measure, config, device=resolve_device(device), jobs=jobs)


def extend(config: Mapping[str, Any], records: list[Record]) -> dict[str, Any]:
    """The seeds and the variants of the records."""
    known, run = config["variants"], dict.fromkeys(record["method"] for record in records)
    seeds = sorted({record["seed"] for record in records})
    return {"seeds": seeds, "variants": {name: known[name] for name in run if name in known}}


WEIGHTS = ("wrong, w < ½", "right, w > ½", "ρ(w, P(y|x))", "AUROC of 1 − w")
"""Headings of the fields ``STORY``."""
METRICS = {
    "ece15": Column("ECE-15", "low", 4),
    "true_ece": Column("true ECE", "low", 4),
    "nll": Column("NLL", "low", 4),
    "accuracy": Column("accuracy", "high", 4),
}


def tell(results: Results) -> Report:
    """Build the report."""
    records, config = results.records, results.config
    sets, names = config["sets"], list(config["variants"])
    group = {r["method"]: r["group"] for r in records}
    report = Report(
        "BO4SC: what each choice is worth",
        f"{len(config['seeds'])} seeds, last epoch, mean and 95 % interval. The name of a variant says how it differs "
        "from bo4sc or from self-calibrated, and Δ is the paired difference from that method. Some variants only "
        "combine trained networks differently; their calibration step is not fitted again. Two variants change more "
        "than their names say. The restart has longer inner loops and fewer outer steps. “Without refit” is one "
        "network trained on the training part alone, without folds and without a search for label noise.",
    )
    if "inner_sgd" in config:
        steps = config["inner_sgd"]
        report.text(
            f"The variant with plain gradient descent as inner optimiser has learning rate {steps['learning_rate']:g} "
            f"and η_w = {steps['outer_learning_rate']:g}. These were chosen once for all sets, on validation data of 2 "
            "seeds that are not reported."
        )

    def values(name: str, metric: str, over: Sequence[str]) -> dict[Any, float]:
        """The mean over some sets by seed; NaN if one of the trainings failed."""
        each = [by_seed(records, metric, dataset=dataset, method=name) for dataset in over]
        seeds = [seed for seed in each[0] if all(seed in part for part in each)]
        return {seed: float(np.mean([np.nan if part[seed] is None else part[seed] for part in each])) for seed in seeds}

    for title, over in {"All sets": sets, **{dataset: [dataset] for dataset in sets}}.items():
        report.section(title, "For each seed, the mean over the sets." if over is sets else "")
        rows = []
        for name in names:
            means = {metric: values(name, metric, over) for metric in METRICS}
            other = OURS if group[name] == OURS and OURS in names else "bo4sc"
            gaps = [shared_difference(means[m], values(other, m, over)) for m in ("true_ece", "nll")]
            estimates = [*(mean_interval(v.values()) if v else UNMEASURED for v in means.values()), *gaps]
            # A failed training has no mean; its row stays empty.
            rows.append([name, group[name], *(None if np.isnan(e.value) else e for e in estimates)])
        heads = [*METRICS.values(), Column("Δ true ECE", digits=4), Column("Δ NLL", digits=4)]
        report.table(["variant", "what", *heads], rows)
    report.section(
        "Weights and noise",
        "The share of misclassified training samples with w < 0.5, and of correct ones with w > 0.5; the rank "
        "correlation of a sample's weight with the exact probability of its label; the AUROC of low weights for "
        "finding labels that differ from the Bayes classifier's. Means over all sets and seeds with a value.",
    )
    story = pd.DataFrame(records).groupby("method")[list(STORY)].agg(lambda s: s.astype(float).mean()).dropna()
    weights = [[name, *map(float, story.loc[name])] for name in names if name in story.index]
    report.table(["variant", *(Column(heading, digits=2) for heading in WEIGHTS)], weights)
    failures(report, records, "Their rows are empty.")
    foot(report, results, hidden=("sgd_search",))
    return report


STUDY = Study(
    "bo4sc-ablation",
    axes=("dataset", "method", "seed"),
    plan=plan,
    order=lambda config: {"method": [v.name for v in variants()], "dataset": config["sets"], "seed": None},
    extend=extend,
    report=lambda results, path: tell(results),
    needed=("sets", "variants", "seeds"),
)

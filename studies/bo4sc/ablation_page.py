"""The report on the ablation: one table over all sets, one per set, and how the weights relate to label noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from calibrant.metrics import mean_interval
from calibrant.report import Column, Report, Results, by_seed
from studies.bo4sc import plain_descent
from studies.bo4sc.variants import OURS, STORY
from studies.common.shared import failures, foot
from studies.common.verdicts import UNMEASURED, shared_difference

WEIGHTS = dict(
    zip(
        STORY,
        (
            Column("wrong, w < ½", digits=2),
            Column("right, w > ½", digits=2),
            Column("ρ(w, P(y|x))", digits=2),
            Column("AUROC of 1 − w", digits=2),
        ),
        strict=True,
    )
)
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
        found = config["inner_sgd"]
        report.text(
            f"The variant with plain gradient descent as inner optimiser has learning rate {found['learning_rate']:g} "
            f"and η_w = {found['outer_learning_rate']:g}. These were chosen once for all sets, on validation data of "
            f"{plain_descent.SEEDS} seeds that are not reported."
        )

    def table(values: Callable[[str, str], dict[Any, float]]) -> None:
        rows = []
        for name in names:
            own = {metric: values(name, metric) for metric in METRICS}
            other = OURS if group[name] == OURS and OURS in names else "bo4sc"
            gaps = [shared_difference(own[m], values(other, m)) for m in ("true_ece", "nll")]
            found = [*(mean_interval(v.values()) if v else UNMEASURED for v in own.values()), *gaps]
            # A failed training has no mean; its row stays empty.
            rows.append([name, group[name], *(None if np.isnan(e.value) else e for e in found)])
        heads = [*METRICS.values(), Column("Δ true ECE", digits=4), Column("Δ NLL", digits=4)]
        report.table(["variant", "what", *heads], rows)

    def on(dataset: str) -> Callable[[str, str], dict[Any, float]]:
        return lambda name, metric: by_seed(records, metric, dataset=dataset, method=name)

    def over_sets(name: str, metric: str) -> dict[Any, float]:
        each = [on(dataset)(name, metric) for dataset in sets]
        whole = [seed for seed in each[0] if all(seed in v for v in each)]
        return {s: float(np.mean([np.nan if v[s] is None else v[s] for v in each])) for s in whole}

    report.section("All sets", "For each seed, the mean over the sets.")
    table(over_sets)
    for dataset in sets:
        report.section(dataset)
        table(on(dataset))
    report.section(
        "Weights and noise",
        "The share of misclassified training samples with w < 0.5, and of correct ones with w > 0.5; the rank "
        "correlation of a sample's weight with the exact probability of its label; the AUROC of low weights for "
        "finding labels that differ from the Bayes classifier's. Means over all sets and seeds with a value.",
    )
    rows = [[name, *(_mean(r[key] for r in records if r["method"] == name) for key in STORY)] for name in names]
    report.table(["variant", *WEIGHTS.values()], [row for row in rows if row[1] is not None])
    failures(report, records, "Their rows are empty.")
    foot(report, results, hidden=("sgd_search",))
    return report


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None

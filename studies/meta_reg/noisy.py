"""Noisy human labels (CIFAR-10N): additional methods, targets and table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from calibrant.bilevel import Bilevel
from calibrant.methods import Calibrated, Entry, Fitted, Task
from calibrant.methods.image_networks import NetworkTraining, Recipe
from calibrant.methods.sample_weights import NEXT_STEP, Reweighting
from studies.common.verdicts import Case, difference, judge, not_above
from studies.meta_reg.data import DATASETS
from studies.meta_reg.groups import RunGroup, spread, times
from studies.report import Column, Table, Verdict


@dataclass(frozen=True)
class AllPartsTraining(NetworkTraining):
    """Training on the validation and meta-validation parts as well, to measure the value of these labels for training.

    Nothing is held out, so a temperature fitted on the validation part is meaningless.
    """

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        parts = [part for part in (task.train, task.val, task.meta) if part is not None]
        return super().problem(model, replace(task, train=sum(parts[1:], parts[0])))


WEIGHTS = Reweighting()
NOISY_METHODS: dict[str, Entry] = {
    "ce-stopped": Entry(
        NetworkTraining(Recipe(select="error")),
        "cross-entropy, with the weights of the lowest error on clean validation data",
    ),
    "ce-clean": Entry(
        AllPartsTraining(), "cross-entropy, also trained on the clean validation parts; nothing is held out"
    ),
    "weights": Entry(WEIGHTS, "one weight per sample, moved by clean data, with a solved head"),
    "weights-ts": Entry(Calibrated("temperature", WEIGHTS), "the same with temperature scaling"),
    "weights-one-step": Entry(
        Reweighting(hypergradient=NEXT_STEP), "one weight per sample, moved by one look-ahead step of the head"
    ),
}
"""Additional methods for noisy labels."""
COMPARED = (
    "ce",
    "ce-ts",
    "ce-stopped",
    "ce-clean",
    "flg-sece",
    "recommended",
    "weights",
    "weights-ts",
    "weights-one-step",
)
"""The default methods of a study with noisy labels."""
SEEDS = 3
GAIN = 0.03
"""The target: the error of ``weights`` is lower than that of ``ce`` by at least this much."""


def has_noisy_labels(dataset: str) -> bool:
    """Whether the training labels of a data set are noisy."""
    return dataset in DATASETS and DATASETS[dataset].noisy is not None


def noisy_groups(found: Sequence[RunGroup]) -> list[RunGroup]:
    """The groups whose training labels are noisy."""
    return [group for group in found if has_noisy_labels(group.dataset)]


def weights_by_truth(fitted: Fitted, wrong: Tensor | None) -> dict[str, float | None]:
    """The mean weights of training samples with a right and with a wrong label; None without weights."""
    weights = fitted.extras.get("sample_weights")
    if weights is None or wrong is None:
        return {"weight_right": None, "weight_wrong": None}
    wrong = wrong.cpu()
    return {"weight_right": float(weights[~wrong].mean()), "weight_wrong": float(weights[wrong].mean())}


def noisy_targets(found: Sequence[RunGroup]) -> list[Verdict]:
    """Targets of learned weights, judged on the groups with noisy labels; empty without such groups."""
    own = noisy_groups(found)
    if not own:
        return []
    gaps = [(g.name, difference(g.records, "error", g.dataset, "weights", "ce")) for g in own]
    rivals = [(g.name, difference(g.records, "error", g.dataset, "weights", "ce-clean")) for g in own]
    return [
        judge(
            f"weights: error at least {100 * GAIN:g} points below ce's (paired difference, points)",
            [Case(where, times(gap, 100), not_above(gap, -GAIN)) for where, gap in gaps],
            digits=2,
        ),
        judge(
            "weights: error below that of ce-clean, which trains on the clean parts (paired difference, points)",
            [Case(where, times(gap, 100), not_above(gap, 0.0)) for where, gap in rivals],
            digits=2,
        ),
    ]


def noisy_table(group: RunGroup) -> Table:
    """Scores, error compared with ``ce``, and the weights of right and wrong labels."""
    columns = [Column(name) for name in ("method", "seeds", "error %", "NLL", "ECE %")]
    columns += [Column("error minus ce's, points", digits=2), Column("weight, right"), Column("weight, wrong")]
    columns += [Column("seconds")]
    rows: list[list[Any]] = []
    for method in group.methods:
        scores = (("error", 2, 100), ("nll", 3, 1), ("ece", 2, 100))
        shown = [spread(group.values(method, m), digits, factor) for m, digits, factor in scores]
        gap = None if method == "ce" else times(difference(group.records, "error", group.dataset, method, "ce"), 100)
        weights = [spread(group.values(method, f"weight_{kind}"), 2) for kind in ("right", "wrong")]
        seconds = spread(group.values(method, "train_seconds"), 0)
        rows.append([method, str(len(group.of(method))), *shown, gap, *weights, seconds])
    share = group.values(group.methods[0], "wrong_share")
    caption = (
        f"{100 * share[0]:.1f} % of the training labels are wrong; all other parts have clean labels. " if share else ""
    )
    return Table(
        columns,
        rows,
        f"{caption}Scores are mean ± standard deviation over seeds; differences are paired, with 95 % intervals. "
        "Weights are means over the training samples with a right or a wrong label.",
    )

"""The confidence map of `recommended` beside post-hoc maps of its network, and one γ beside one γ per image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrant.metrics import Estimate, paired_difference
from docs.generate.stored import stored
from studies.common.verdicts import difference, mean
from studies.meta_reg.data import DATASETS
from studies.meta_reg.groups import times
from studies.report import Column, to_markdown

MAPS = {"learned": "learned in training", "temperature": "temperature", "auto": "`posthoc.Auto`"}
GAMMAS = ("focal", "focal-control", "flg-sece", "flg-sece-one-step", "gamma-sece")
SETS = ("digits", "cifar10", "cifar100")


def maps() -> str:
    """NLL and ECE of each map and the paired differences; data sets without runs are shown as not run."""
    rows: list[list[object]] = []
    for name in (*SETS, "tiny-imagenet"):
        runs = [record for record in stored("learned-map").records if record["dataset"] == name]
        if not runs:
            rows.append([DATASETS[name].title, "not run", *[None] * 6])
            continue
        for which, told in MAPS.items():
            nll, ece, floor = (sum(run[which][m] for run in runs) / len(runs) for m in ("nll", "ece", "floor"))
            gaps = (
                [None, None] if which == "learned" else [_gap(runs, which, "nll"), times(_gap(runs, which, "ece"), 100)]
            )
            rows.append([DATASETS[name].title, told, str(len(runs)), nll, 100 * ece, 100 * floor, *gaps])
    columns = [
        Column("data set"),
        Column("map"),
        Column("seeds"),
        Column("NLL", digits=4),
        Column("ECE %", digits=2),
        Column("floor %", digits=2),
        Column("learned minus this: NLL", digits=4),
        Column("ECE, points", digits=2),
    ]
    return to_markdown(columns, rows)


def _gap(runs: list[Mapping[str, Any]], which: str, metric: str) -> Estimate:
    return paired_difference(*([run[own][metric] for run in runs] for own in ("learned", which)))


def gammas() -> str:
    """One γ moved by the hypergradient of `flg-sece`, and one look-ahead step, beside the methods of the study."""
    rows: list[list[object]] = []
    for name in SETS:
        file = "second-paper-digits" if name == "digits" else f"meta-reg-{name}"
        records = [r for r in stored(file).records if not r["failure"]]
        for method in GAMMAS:
            runs = [r for r in records if r["method"] == method]
            title = [DATASETS[name].title, f"`{method}`"]
            if not runs:
                rows.append([*title, "not run", *[None] * 6])
                continue
            nll, ece, floor = (mean(records, metric, name, method) for metric in ("nll", "ece", "floor"))
            gamma, spread = (_mean(runs, f"gamma_{what}") for what in ("mean", "std"))
            gap = None if method == "flg-sece" else difference(records, "nll", name, method, "flg-sece")
            rows.append([*title, str(len(runs)), nll.value, 100 * ece.value, 100 * floor.value, gamma, spread, gap])
    columns = [
        Column("data set"),
        Column("method"),
        Column("seeds"),
        Column("NLL", digits=3),
        Column("ECE %", digits=2),
        Column("floor %", digits=2),
        Column("γ", digits=2),
        Column("γ std", digits=2),
        Column("NLL minus flg-sece's", digits=4),
    ]
    return to_markdown(columns, rows)


def _mean(runs: list[Mapping[str, Any]], metric: str) -> float | None:
    values = [run[metric] for run in runs if run[metric] is not None]
    return sum(values) / len(values) if values else None


SECTIONS = {"learned-map": maps, "one-gamma": gammas}

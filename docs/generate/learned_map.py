"""The confidence map of `recommended` beside post-hoc maps of its network, and one γ beside one γ per image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from calibrant.metrics import Estimate, paired_difference
from docs.generate.stored import stored, with_digits
from studies.common.verdicts import difference, mean
from studies.meta_reg.data import DATASETS
from studies.meta_reg.groups import times
from studies.report import to_markdown

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
            differences = [None, None]
            if which != "learned":
                differences = [_gap(runs, which, "nll"), times(_gap(runs, which, "ece"), 100)]
            rows.append([DATASETS[name].title, told, str(len(runs)), nll, 100 * ece, 100 * floor, *differences])
    columns = [*with_digits(4, "NLL"), *with_digits(2, "ECE %", "floor %")]
    gaps = [*with_digits(4, "learned minus this: NLL"), *with_digits(2, "ECE, points")]
    return to_markdown(["data set", "map", "seeds", *columns, *gaps], rows)


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
            gamma, spread = pd.DataFrame(runs)[["gamma_mean", "gamma_std"]].astype(float).mean()
            gap = None if method == "flg-sece" else difference(records, "nll", name, method, "flg-sece")
            rows.append([*title, str(len(runs)), nll.value, 100 * ece.value, 100 * floor.value, gamma, spread, gap])
    columns = [*with_digits(3, "NLL"), *with_digits(2, "ECE %", "floor %", "γ", "γ std")]
    return to_markdown(["data set", "method", "seeds", *columns, *with_digits(4, "NLL minus flg-sece's")], rows)


SECTIONS = {"learned-map": maps, "one-gamma": gammas}

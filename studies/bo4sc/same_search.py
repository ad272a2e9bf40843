"""The same search for the settings of Standard, isotonic regression and BO4SC: ``python -m studies.bo4sc.same_search``.

The first paper selects "all hyperparameters" by a grid search, of which it states neither grid nor criterion. Here all
three methods get one search and one criterion. Of the 300 validation points of a seed, 200 move BO4SC's weights or fit
the isotonic regression, and 100 score the setting by the cross-entropy of the confidence (Eq. (12) and Eq. (13)), as in
:mod:`studies.bo4sc.grid`. The seeds of the search have other samples than those of the test.

A search trains a setting and its neighbours on each ladder of values, moves to the best of them, and ends where no
neighbour is better. So the chosen setting has worse values on both sides, except at the ends of a ladder. Each training
is scored at all numbers of epochs; if the largest is the best, the search goes on with trainings of twice the length.
Finished searches stay in the result file and are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from calibrant.base.classes import log_of_others
from calibrant.methods import BO4SC, Standard, fit_all
from calibrant.metrics import Estimate, ece, mean_interval, paired_difference
from calibrant.posthoc import make_calibrator
from studies.bo4sc.search import FIRST_SEED, HELD_OUT, search_task, trajectories
from studies.bo4sc.table1 import PAPER
from studies.common.records import prepare
from studies.common.shared import made
from studies.report import Column, Record, read_results, to_markdown, write_results
from studies.sets import FITTED_SETS

RESULTS = Path("results/bo4sc-same-search.json")
METHODS = ("standard", "isotonic", "bo4sc")
SEARCH_SEEDS, TEST_SEEDS = 4, 8
NETWORK: dict[str, tuple[float, ...]] = {
    "width": (8, 16, 32, 64, 128, 256),
    "learning_rate": (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
}
LADDERS = dict.fromkeys(METHODS, NETWORK) | {
    "bo4sc": NETWORK
    | {"steps": (1, 2, 5, 10, 20), "outer_learning_rate": (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000)}
}
"""The values of each setting, by method."""
START = {"width": 64, "learning_rate": 0.005, "steps": 2, "outer_learning_rate": 1000}
EPOCHS = (20, 40, 75, 150, 300, 600, 1200, 2400)
LONGEST = 1200
"""Epochs of the first trainings of a search."""
ALPHA = 30.0
"""The smooth maximum's α, which the larger search found to matter little."""
Setting = tuple[tuple[str, float], ...]


def network(setting: dict[str, float], epochs: int) -> Standard | BO4SC:
    """The method that trains the network of a setting; isotonic regression is fitted to Standard's."""
    hidden, rate = (int(setting["width"]),) * 2, setting["learning_rate"]
    if "steps" not in setting:
        return Standard(hidden=hidden, learning_rate=rate, epochs=epochs)
    steps, outer = int(setting["steps"]), float(setting["outer_learning_rate"])
    return BO4SC(hidden=hidden, learning_rate=rate, epochs=epochs, alpha=ALPHA, steps=steps, outer_learning_rate=outer)


@dataclass
class Networks:
    """Logits of trained networks of one set on the validation points of each search seed, by setting and epochs."""

    dataset: str
    seeds: range
    logits: dict[tuple[Setting, int], dict[int, Tensor]] = field(default_factory=dict)
    """By (setting, length of the training): logits (seeds, 300, C) by epochs."""

    def train(self, settings: Sequence[Setting], longest: int) -> None:
        """Train the settings that are new."""
        new = [setting for setting in settings if (setting, longest) not in self.logits]
        places = list(itertools.product(new, self.seeds))
        tasks = [search_task(self.dataset, seed)[0] for _, seed in places]
        points = [prepare(self.dataset, seed).task.need_val("The search") for _, seed in places]
        epochs = [number for number in EPOCHS if number <= longest]
        jobs = [(network(dict(setting), longest), task) for (setting, _), task in zip(places, tasks, strict=True)]
        logits = trajectories(jobs, points, epochs, "cpu")
        for number, setting in enumerate(new):
            positions = range(number * len(self.seeds), (number + 1) * len(self.seeds))
            self.logits[setting, longest] = {e: torch.stack([logits[p, e] for p in positions]) for e in epochs}

    def labels(self) -> Tensor:
        """Labels (seeds, 300)."""
        return torch.stack([prepare(self.dataset, seed).task.need_val("The search").labels for seed in self.seeds])


def scores(method: str, logits: Tensor, labels: Tensor, fitted: int) -> Record:
    """Scores of one seed on the points after the first ``fitted``, to which isotonic regression is fitted."""
    log_probs = logits.double().log_softmax(-1)
    top = log_probs.max(-1)
    correct = top.indices == labels
    right, wrong = top.values, log_of_others(log_probs, top.indices)
    if method == "isotonic":
        calibrator = make_calibrator("isotonic-confidence")
        calibrator.fit(logits[:fitted].double().numpy(), labels[:fitted].numpy())
        confidence = torch.as_tensor(calibrator.confidence(logits.double().numpy()))
        right, wrong = confidence.log(), torch.log1p(-confidence)
    judged = slice(fitted, None)
    bce = -torch.where(correct, right, wrong)[judged].mean()
    return {"bce": bce.item(), "confidence": right[judged].exp().numpy(), "correct": correct[judged].numpy()}


def summary(scored: Sequence[Record]) -> Record:
    """Mean criterion, and ECE and accuracy of all points together."""
    confidence, correct = (np.concatenate([score[name] for score in scored]) for name in ("confidence", "correct"))
    return {
        "bce": float(np.mean([score["bce"] for score in scored])),
        "ece10": float(ece(confidence=confidence, correct=correct, bins=10)),
        "accuracy": float(correct.mean()),
    }


def searched(method: str, networks: Networks, setting: Setting, longest: int) -> Iterator[Record]:
    """One record for each number of epochs of a setting."""
    about = {"stage": "search", "dataset": networks.dataset, "method": method, **dict(setting)}
    for epochs, logits in networks.logits[setting, longest].items():
        if bool(logits.isfinite().all()):
            each = [
                scores(method, seed_logits, labels, len(labels) - HELD_OUT)
                for seed_logits, labels in zip(logits, networks.labels(), strict=True)
            ]
            yield {**about, "epochs": epochs, **summary(each), "bce_by_seed": [score["bce"] for score in each]}


def neighbours(ladders: dict[str, tuple[float, ...]], setting: Setting) -> list[Setting]:
    """The setting itself, and one step up and down on each ladder."""
    settings = [setting]
    for name, value in setting:
        place = ladders[name].index(value)
        values = ladders[name][max(0, place - 1) : place + 2]
        settings += [tuple((n, new if n == name else v) for n, v in setting) for new in values if new != value]
    return settings


def search(method: str, networks: Networks) -> list[Record]:
    """The records of all settings that a search scored; the one with the lowest criterion is chosen."""
    ladders, longest = LADDERS[method], LONGEST
    setting: Setting = tuple((name, START[name]) for name in ladders)
    records: dict[tuple[Setting, int], Record] = {}
    while True:
        nearby = neighbours(ladders, setting)
        networks.train(nearby, longest)
        for near in nearby:
            records.update({(near, r["epochs"]): r for r in searched(method, networks, near, longest)})
        best, epochs = min(records, key=lambda key: records[key]["bce"])
        print(networks.dataset, method, dict(best), epochs, f"{records[best, epochs]['bce']:.4f}", flush=True)
        if best == setting and epochs == longest < max(EPOCHS):
            longest *= 2
        elif best == setting:
            return list(records.values())
        setting = best


def tested(records: Sequence[Record]) -> list[Record]:
    """The chosen setting of each search on the test parts of other seeds; the whole validation part is used."""
    tests = []
    for chosen in choices(records):
        names = LADDERS[chosen["method"]]
        about = {"stage": "test", **{name: chosen[name] for name in ("dataset", "method", *names, "epochs")}}
        method = network({name: chosen[name] for name in names}, chosen["epochs"])
        prepared = [prepare(chosen["dataset"], seed) for seed in range(TEST_SEEDS)]
        fitted = fit_all([(method, split.task) for split in prepared], device="cpu", n_jobs=1)
        for split, model in zip(prepared, fitted, strict=True):
            val, (test_inputs, test_labels) = split.task.need_val("The test"), split.problem.test
            logits = model.logits(torch.cat([val.inputs, split.scale(test_inputs)]))
            labels = torch.cat([val.labels, torch.as_tensor(test_labels)])
            values = scores(chosen["method"], logits, labels, len(val))
            tests.append({**about, "seed": split.seed, **summary([values])})
    return tests


def choices(records: Sequence[Record]) -> list[Record]:
    """The chosen record of each finished search."""
    search = [r for r in records if r["stage"] == "search"]
    return [search[k] for k in pd.DataFrame(search).groupby(["dataset", "method"], sort=False)["bce"].idxmin()]


def at_an_end(chosen: Record) -> list[str]:
    """The settings of a choice that are the first or last value of their ladder, except T = 1, the least possible."""
    ladders = LADDERS[chosen["method"]] | {"epochs": EPOCHS}
    ends = [name for name, values in ladders.items() if chosen[name] in (values[0], values[-1])]
    return [name for name in ends if (name, chosen[name]) != ("steps", 1)]


def table(records: Sequence[Record]) -> str:
    """The chosen settings, and their ECE and accuracy on test samples beside the printed values."""
    tests = pd.DataFrame([r for r in records if r["stage"] == "test"]).groupby(["dataset", "method"])
    rows = []
    for chosen in choices(records):
        dataset, method = chosen["dataset"], chosen["method"]
        of_search = tests.get_group((dataset, method))
        row = [dataset, f"`{method}`", *(f"{chosen[n]:g}" if n in LADDERS[method] else "" for n in START)]
        row.append(chosen["epochs"])
        for printed, metric in (("ece", "ece10"), ("accuracy", "accuracy")):
            row += [PAPER[printed][method][dataset], mean_interval(of_search[metric])]
        rows.append(row)
    heads: list[Column | str] = ["set", "method", "width", "η_θ", "T", "η_w", Column("epochs", digits=0)]
    heads += [Column(f"{what}, {which}", digits=3) for what in ("ECE", "accuracy") for which in ("printed", "here")]
    return to_markdown(heads, rows)


def differences(records: Sequence[Record]) -> dict[str, dict[str, Estimate]]:
    """By rival and set: the ECE of BO4SC minus that of the rival, paired by seed."""
    tests = pd.DataFrame([r for r in records if r["stage"] == "test"])
    ece = tests.pivot(index=["dataset", "seed"], columns="method", values="ece10")
    return {
        rival: {
            str(dataset): paired_difference(of_set["bo4sc"].tolist(), of_set[rival].tolist())
            for dataset, of_set in ece.groupby("dataset", sort=False)
        }
        for rival in ("standard", "isotonic")
    }


def main(words: Sequence[str]) -> None:
    """Make the searches that the result file lacks, and test the chosen settings."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sets", nargs="+", choices=list(FITTED_SETS), default=list(FITTED_SETS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="name the searches that are missing, and stop")
    options = parser.parse_args(words)
    records = list(read_results(options.out).records) if options.out.exists() else []
    known = {(r["dataset"], r["method"]) for r in records if r["stage"] == "search"}
    config: dict[str, Any] = {
        "experiment": "bo4sc-same-search",
        "criterion": "bce",
        "held_out": HELD_OUT,
        "alpha": ALPHA,
        "seeds": [FIRST_SEED + k for k in range(SEARCH_SEEDS)],
        "test_seeds": list(range(TEST_SEEDS)),
        "device": "cpu",
        **made(),
    }
    for dataset in options.sets:
        networks = Networks(dataset, range(FIRST_SEED, FIRST_SEED + SEARCH_SEEDS))
        for method in METHODS:
            if (dataset, method) in known:
                continue
            if options.dry_run:
                print(f"missing: {dataset}, {method}")
                continue
            new = search(method, networks)
            records += new
            records += tested(new)
            write_results(options.out, config, records)
    if records:
        print(table(records))


if __name__ == "__main__":
    main(sys.argv[1:])

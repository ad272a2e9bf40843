"""Test the default classifier on copies, groups, noise, outliers and other defects: ``python -m studies.hostile``.

It is compared with the class frequencies, each member of its pool alone, and scikit-learn's classifiers. Each seed
draws new training rows and clean test rows, and fits new classifiers. The records of `before` are those of an earlier
version of the classifier; they are kept, and no command adds to them.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

from calibrant.base.words import count
from calibrant.data.scaling import fit_scaling
from calibrant.estimators import CrossCalibrated, SelfCalibratedClassifier
from calibrant.estimators.folds import dealt_splits
from calibrant.methods.blend import KINDS
from calibrant.metrics import Estimate
from calibrant.pool.pool import class_shares, fit_pool
from calibrant.pool.pool_members import Rows, cross_fit
from studies import script
from studies.common.records import on_sample, output_of, short
from studies.common.runs import Meter, warm_up
from studies.common.verdicts import Case, Records, cell, datasets, difference, judge, mean
from studies.common.verdicts import not_significantly_above_zero as not_above
from studies.hostile_cases import CASES, Data
from studies.report import Column, Record, Verdict, to_markdown, with_digits

OWN, BEFORE, FREQUENCIES = "self-calibrated", "before", "class-frequencies"
MEMBERS = ("network", "trees", "linear")
EARLY: dict[str, Any] = {"early_stopping": True}
CONTENDERS: dict[str, Callable[[int], Any]] = {
    OWN: lambda seed: SelfCalibratedClassifier(random_state=seed, device="cpu"),
    FREQUENCIES: lambda seed: Frequencies(),
    "network": lambda seed: SelfCalibratedClassifier(members=("network",), random_state=seed, device="cpu"),
    "trees": lambda seed: Alone("trees", fold_seed(seed)),
    "linear": lambda seed: Alone("linear", fold_seed(seed)),
    "cross-calibrated": lambda seed: CrossCalibrated(
        HistGradientBoostingClassifier(**EARLY, random_state=seed), random_state=seed
    ),
    "hist-gradient-boosting": lambda seed: HistGradientBoostingClassifier(**EARLY, random_state=seed),
    "logistic-regression": lambda seed: make_pipeline(
        StandardScaler(with_mean=False), LogisticRegression(max_iter=1000)
    ),
    "mlp": lambda seed: make_pipeline(StandardScaler(with_mean=False), MLPClassifier(**EARLY, random_state=seed)),
}
"""What is fitted, in the order of the report.

A member alone uses the folds of the classifier. Other folds would change its loss by chance, and a pool that keeps only
this member could then be significantly better or worse than the member.
"""
SCORES = ("accuracy", "nll", "ece15", "floor_self15", "smooth_ece", "brier", "aurc", "confidence_minus_accuracy")
COSTS = ("seconds", "processor_seconds", "peak_memory")
SECONDS, TIMES = 10.0, 10.0
"""The largest accepted fit time: in processor seconds, which other processes hardly change, or as a multiple of that of
scikit-learn's network."""


class Frequencies(ClassifierMixin, BaseEstimator):
    """A classifier that predicts the class shares, smoothed by one additional row spread over all classes."""

    def fit(self, X: Any, y: np.ndarray) -> Frequencies:
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.shares_ = class_shares(codes, len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.tile(self.shares_, (X.shape[0], 1))


class Alone(ClassifierMixin, BaseEstimator):
    """One pool member other than the networks, cross-fitted and calibrated alone."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        self.kind = kind
        self.seed = seed

    def fit(self, X: np.ndarray, y: np.ndarray, groups: np.ndarray | None = None) -> Alone:
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.scaling_ = fit_scaling(_dense(X).astype(np.float64), None)
        rows = Rows(self._inputs(X), codes, None, len(self.classes_))
        splits, together = dealt_splits(rows.inputs, codes, 5, seed=self.seed, groups=groups)
        member = cross_fit(KINDS[self.kind], rows, splits, self.seed)
        assert member is not None
        self.model_ = member.model
        self.pool_ = fit_pool(member.held_out[None], codes, groups=together)
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return self.pool_.probs(log_softmax(self.model_.scores(self._inputs(X)), axis=1)[None])

    def _inputs(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.scaling_.apply(_dense(X)).numpy(), dtype=np.float64)


def _dense(X: Any) -> np.ndarray:
    return np.asarray(X.todense()) if sparse.issparse(X) else X


def fold_seed(seed: int) -> int:
    """Return the seed from which the classifier with this ``random_state`` draws its folds."""
    return int(check_random_state(seed).randint(np.iinfo(np.int32).max))


def fitted(method: str, data: Data, seed: int) -> Any:
    """Fit a contender to a case; pass the groups if its ``fit`` accepts them."""
    model = CONTENDERS[method](seed)
    grouped = data.groups is not None and isinstance(model, SelfCalibratedClassifier | CrossCalibrated | Alone)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(data.X, data.y, **({"groups": data.groups} if grouped else {}))


def measure(runs: Sequence[script.Run]) -> list[Record]:
    """The records of runs; any error of a contender is recorded as its result."""
    records = []
    for run in runs:
        data = CASES[run["dataset"]].make(run["seed"])
        try:
            result = {**measure_fit(run["method"], data, run["seed"]), "failure": None}
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            result = dict.fromkeys((*SCORES, *COSTS)) | {"failure": reason}
        records.append({**run, **result})
    return records


def measure_fit(method: str, data: Data, seed: int) -> Record:
    """Scores of one fit on the test rows, its seconds, and its memory beyond the data."""
    if method in (OWN, "network"):
        warm_up("cpu")
    meter = Meter()
    with meter([0]):
        begin = time.process_time()
        model = fitted(method, data, seed)
        worked = time.process_time() - begin
    cost = meter.costs[0]
    times = {"seconds": round(cost.seconds, 3), "processor_seconds": round(worked, 3)}
    members = {"members": list(model.members_)} if method == OWN else {}
    scores = score(model.predict_proba(data.X_test), data.y_test)
    return scores | times | {"peak_memory": cost.peak_memory} | members


def score(probs: np.ndarray, labels: np.ndarray) -> Record:
    """Return the scores of probabilities whose columns are classes 0, 1, …"""
    if not np.isfinite(probs).all():
        raise ValueError("All probabilities must be finite; got NaN or infinity.")
    values = on_sample(output_of(probs), labels)
    return {name: short(values[name]) for name in SCORES}


def with_costs(records: Records) -> list[Record]:
    """Records with the peak memory in megabytes, and with processor seconds.

    Records of earlier runs have only the seconds of a fit on one thread, which are at least as many.
    """
    return [
        {**r, "memory": r.get("peak_memory") and r["peak_memory"] / 1e6}
        | {"processor_seconds": r.get("processor_seconds", r.get("seconds"))}
        for r in records
    ]


def best_member(records: Records, dataset: str) -> str | None:
    """Return the pool member with the lowest mean NLL alone; None if none was measured."""
    means = {name: mean(records, "nll", dataset, name).value for name in MEMBERS}
    measured = {name: value for name, value in means.items() if not math.isnan(value)}
    return min(measured, key=lambda name: measured[name]) if measured else None


def verdicts(records: Records) -> list[Verdict]:
    """Judge whether the classifier is worse than the class frequencies or one of its members, and how long it takes."""
    names = datasets(records)
    failed = {r["dataset"] for r in records if r["method"] == OWN and r["failure"]}

    def against(dataset: str, rival: str | None) -> tuple[Estimate | None, bool | None]:
        if dataset in failed or rival is None:
            return None, False if dataset in failed else None
        gap = difference(records, "nll", dataset, OWN, rival)
        return gap, not_above(gap)

    def in_time(dataset: str) -> tuple[float | None, bool | None]:
        ours, other = (mean(records, "processor_seconds", dataset, name).value for name in (OWN, "mlp"))
        limit = SECONDS if math.isnan(other) else max(SECONDS, TIMES * other)
        return (None, None) if math.isnan(ours) else (ours, ours <= limit)

    members = {name: best_member(records, name) for name in names}
    times = {name: in_time(name) for name in names}
    return [
        judge(
            "NLL not significantly above that of the class frequencies (paired difference)",
            [Case(name, *against(name, FREQUENCIES)) for name in names],
        ),
        judge(
            "NLL not significantly above that of the best member (paired difference)",
            [Case(f"{name} ({members[name]})", *against(name, members[name])) for name in names if members[name]],
        ),
        judge(
            f"fit time at most {SECONDS:g} s or {TIMES:g} × MLPClassifier's (processor seconds)",
            [Case(name, *times[name]) for name in names if times[name][0] is not None],
            digits=1,
        ),
    ]


def results_section(records: Records) -> str:
    """The targets, the scores of the classifier, and its costs beside the earlier version, with one line per case."""
    records = with_costs(records)

    def value(metric: str, case: str, method: str) -> float | None:
        estimate = cell(records, metric, case, method)
        return None if estimate is None else estimate.value

    scores, costs = [], []
    for case in datasets(records):
        member = best_member(records, case)
        nll = {who: cell(records, "nll", case, who) for who in (OWN, BEFORE, FREQUENCIES)}
        ece, ece_before = (cell(records, "ece15", case, who) for who in (OWN, BEFORE))
        best = cell(records, "nll", case, member) if member else None
        floor = cell(records, "floor_self15", case, OWN)
        scores.append([case, CASES[case].story, nll[OWN], nll[FREQUENCIES], member, best, ece, floor])
        times = value("seconds", case, BEFORE), value("processor_seconds", case, OWN)
        memory = (value("memory", case, who) for who in (BEFORE, OWN))
        costs.append([case, nll[BEFORE], nll[OWN], ece_before, ece, *times, *memory])
    head: list[Column | str] = ["case", "what is wrong", *with_digits(4, f"NLL, {OWN}", f"NLL, {FREQUENCIES}")]
    head += ["best member", *with_digits(4, "NLL, best member"), *with_digits(3, "ECE, now", "floor")]
    cost_head: list[Column | str] = ["case", *with_digits(4, f"NLL, {BEFORE}", f"NLL, {OWN}")]
    cost_head += [*with_digits(3, "ECE, before", "ECE, now"), *with_digits(1, "s, before", "s, now")]
    cost_head += with_digits(0, "MB, before", "MB, now")
    judged = [[v.statement, v.word, v.note or None] for v in verdicts(records)]
    return "\n\n".join(
        [
            "Means with 95 % intervals (Student's t), and paired differences. The classifier was measured with "
            f"{seeds_of(records, OWN)}, the earlier version with {seeds_of(records, BEFORE)}. Fits ran side by side, "
            "each on one thread.",
            to_markdown(["target", "verdict", "where it is missed"], judged),
            f"`{OWN}` is SelfCalibratedClassifier with its default settings; `{BEFORE}` is an earlier version of it. "
            "The best member is the pool member with the lowest mean NLL on its own. It is chosen by its test scores, "
            "so it looks slightly better than it is.",
            to_markdown(head, scores),
            "Costs, and the earlier version. `s` are the seconds of one fit, and `MB` is its peak memory beyond the "
            "data:",
            to_markdown(cost_head, costs),
        ]
    )


def seeds_of(records: Records, method: str) -> str:
    """Say how many seeds of each case a contender was measured with."""
    seeds = Counter(r["dataset"] for r in records if r["method"] == method)
    if not seeds:
        return "none"
    fewest, most = min(seeds.values()), max(seeds.values())
    span = count(most, "seed") if fewest == most else f"{fewest} to {most} seeds"
    return f"{span} of {count(len(seeds), 'case')}"


def every_score(records: Records) -> str:
    """The mean scores and costs of every contender on every case."""
    names = ["nll", "ece15", "floor_self15", "accuracy", "seconds", "processor_seconds", "memory"]
    means = pd.DataFrame(with_costs(records)).groupby(["dataset", "method"], sort=False)[names].mean()
    rows = [[*where, *values] for where, values in zip(means.index, means.to_numpy(), strict=True)]
    return to_markdown(["case", "method", *with_digits(3, *names)], rows)


def main(words: Sequence[str]) -> None:
    """Measure the fits that are not stored, and print the tables."""
    parser = script.options(__doc__ or "", "results/hostile.json")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--methods", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    chosen = parser.parse_args(words)
    runs = [
        [{"dataset": case, "method": method, "seed": seed}]
        for seed in range(chosen.seeds)
        for case in chosen.cases
        for method in chosen.methods
        if method not in CASES[case].slow
    ]
    order = {"dataset": list(CASES), "method": [OWN, BEFORE, *list(CONTENDERS)[1:]], "seed": None}
    records = script.run_missing(chosen, "hostile", runs, measure, order)
    print(results_section(records), every_score(records), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])

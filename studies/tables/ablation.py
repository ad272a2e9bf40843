"""`studies ablate tables`: measure the effect of embedded columns, L2 factors per column and mini-batches.

Rows of the test part of a split are not used: networks train on its training part, 60 % of the table, and are scored on
its validation part. Seeds start at 100; no reported split uses these.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import pandas as pd

from calibrant.methods import Method, SelfCalibrated, Task
from studies.common.jobs import Job, run_jobs
from studies.common.keys import Key, make_key
from studies.common.options import Device, Jobs, Option, Tables
from studies.common.records import ClassifierOutput, resolve_device
from studies.common.runs import Training
from studies.common.shared import foot
from studies.common.store import Line, Store
from studies.common.study import Plan, Study
from studies.report import Column, Record, Report, Results
from studies.tables.data import DEVELOPMENT, Split, describe, find_tables, prepare
from studies.tables.study import measure

FIRST_SEED = 100
TREES = "trees"
"""Gradient boosting with a temperature, for comparison."""


def variants() -> dict[str, Method]:
    """The compared settings of self-calibrated by name; "piecewise" is the default."""
    networks = SelfCalibrated(members=("network",))
    plain = replace(networks, embedding=None)
    return {
        "plain": plain,
        "plain-batches": replace(plain, batch_size=256),
        "linear": replace(networks, embedding="linear"),
        "piecewise": replace(networks, embedding="piecewise"),
        "piecewise-alone": replace(networks, repeats=1),
        "piecewise-128": replace(networks, hidden=(128, 128)),
        "piecewise-256": replace(networks, hidden=(256,)),
        "piecewise-tanh": replace(networks, activation="tanh"),
    }


def plan(
    *,
    data: Tables = None,
    seeds: Annotated[int, Option("Number of splits, with seeds from 100.", least=1)] = 2,
    rows: Annotated[int, Option("Maximum number of training rows per table.", least=1)] = 3000,
    only: Annotated[Sequence[str] | None, Option("Names of tables; default: the development tables.")] = None,
    methods: Annotated[Sequence[str] | None, Option("Names of variants; default: all.")] = None,
    device: Device = "auto",
    jobs: Jobs = None,
) -> Plan:
    """Compare networks of self-calibrated with and without embedded columns, on development data: NLL and time."""
    if data is None:
        raise ValueError("--data must name a folder of tables, or --from a result file; got neither.")
    known, place = variants(), resolve_device(device)
    names = list(methods or (*known, TREES))
    if unknown := [name for name in names if name not in {*known, TREES}]:
        raise ValueError(f"methods must name variants among {', '.join((*known, TREES))}; got {', '.join(unknown)}.")
    paths = find_tables(Path(data), only or sorted(DEVELOPMENT & set(find_tables(Path(data)))))
    tables = {name: describe(path) for name, path in paths.items()}

    def key(table: str, method: str, seed: int) -> Key:
        settings, digest = f"{known.get(method)!r}, {rows} rows", tables[table]["sha256"]
        return make_key(settings=settings, data=digest, table=table, method=method, seed=seed)

    def expected(line: Line) -> Key | None:
        own = line["key"]
        return key(**own) if own["table"] in tables and own["method"] in {*known, TREES} else None

    def make(store: Store, missing: list[Key]) -> None:
        split = partial(development_split, paths, rows)
        work: list[Job] = [
            partial(fit_trees, split, own)
            if own["method"] == TREES
            else Training(((own, known[own["method"]]),), split, partial(measure, place.type), place)
            for own in missing
        ]
        run_jobs(store, missing, beside=[[job] for job in work], workers=jobs)

    config: dict[str, Any] = {
        "rows": rows,
        "methods": {name: repr(known[name]) for name in names if name in known},
        "tables": tables,
        "device": str(place),
    }
    span = range(FIRST_SEED, FIRST_SEED + seeds)
    return Plan([key(table, name, seed) for seed in span for table in tables for name in names], config, make, expected)


def development_split(paths: Mapping[str, Path], rows: int, key: Key) -> Split:
    """Return at most ``rows`` of the training part of a split, and the validation part for scoring."""
    split = prepare(key["table"], paths[key["table"]], key["seed"])
    task, held = split.task, split.task.val
    assert held is not None
    train = task.train[:rows]
    return replace(
        split, task=Task(train, None, task.n_classes, task.seed), inputs=held.inputs, labels=held.labels.numpy()
    )


def fit_trees(prepared: Any, key: Key) -> dict[Key, Record]:
    """Measure scikit-learn's gradient boosting, calibrated by a temperature in five folds."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import HistGradientBoostingClassifier

    split = cast(Split, prepared(key))
    boosting = HistGradientBoostingClassifier(
        learning_rate=0.03, max_iter=1000, early_stopping=True, random_state=split.seed
    )
    begin_at = time.perf_counter()
    model = CalibratedClassifierCV(boosting, method="temperature", cv=5)
    model.fit(split.task.train.inputs.numpy(), split.task.train.labels.numpy())
    seconds = time.perf_counter() - begin_at
    probs = np.zeros((len(split.labels), split.task.n_classes))
    probs[:, model.classes_] = model.predict_proba(split.inputs.numpy())
    found = ClassifierOutput(probs, probs.argmax(1), probs.max(1))
    return {key: split.record(TREES, found, None, seconds=round(seconds, 3), device="cpu")}


def tell(results: Results) -> Report:
    """Each variant's mean NLL per table, the geometric mean of its ratios to plain networks, and its seconds."""
    frame = pd.DataFrame(results.records)
    means = frame.groupby(["method", "table"], sort=False)[["nll", "seconds"]].mean().unstack("table")
    means = means.reindex([name for name in (*variants(), TREES) if name in means.index])
    nll, seconds = means["nll"], means["seconds"].sum(axis=1)
    plain = nll.loc["plain"] if "plain" in nll.index else np.nan
    ratio = np.exp(np.log(nll / plain).mean(axis=1))
    report = Report("Networks of self-calibrated on tables", "Mean NLL on validation parts of development tables.")
    columns = [Column("variant"), *(Column(name, "low", digits=4) for name in nll.columns)]
    columns += [Column("mean ratio to plain"), Column("seconds", digits=0)]
    report.table(columns, [[name, *nll.loc[name], ratio[name], seconds[name]] for name in nll.index])
    foot(report, results, hidden=("methods", "tables"))
    return report


STUDY = Study(
    "tables-ablation",
    axes=("table", "method", "seed"),
    plan=plan,
    order=lambda config: {"table": None, "method": [*variants(), TREES], "seed": None},
    report=lambda results, path: tell(results),
    needed=("rows", "tables", "methods"),
)

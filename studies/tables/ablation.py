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
from typing import Any, cast

import numpy as np

from calibrant.base.atomic_write import write_text_whole
from calibrant.methods import Method, SelfCalibrated, Task
from calibrant.report import Results
from calibrant.report.results import Record
from studies.common.command import begin, export, open_store, usable_folder
from studies.common.contents import in_order, position, read_own
from studies.common.jobs import Job, run_jobs
from studies.common.keys import Key, make_key
from studies.common.records import ClassifierOutput, resolve_device
from studies.common.runs import Training
from studies.common.shared import made
from studies.tables.data import DEVELOPMENT, Split, describe, find_tables, prepare
from studies.tables.study import measure

NAME = "tables-ablation"
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


def run(
    *,
    data: Path | None = None,
    seeds: int = 2,
    rows: int = 3000,
    only: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    out: Path,
    device: str = "auto",
    jobs: int | None = None,
    fresh: bool = False,
    source: str | Path | None = None,
) -> Path:
    """Train and score every variant on development data, and return the path of the table, ``report.md``.

    Parameters
    ----------
    data : folder of CSV, TSV and Parquet files
    seeds : the number of splits
    rows : the largest number of training rows of a table
    only : names of tables; by default the development tables
    methods : names of variants; by default all
    out, device, jobs, fresh, source : as in :func:`studies.tables.run`
    """
    if source is not None:
        return write_table(usable_folder(out), read_own(source, NAME, arrange))
    if data is None:
        raise ValueError(
            "data must name a folder of tables, or source a result file to make the report from; got neither."
        )
    known, place = variants(), resolve_device(device)
    names = list(methods or (*known, TREES))
    if unknown := [name for name in names if name not in {*known, TREES}]:
        raise ValueError(f"methods must name variants among {', '.join((*known, TREES))}; got {', '.join(unknown)}.")
    found = find_tables(Path(data), only or sorted(DEVELOPMENT & set(find_tables(Path(data)))))
    tables = {name: describe(path) for name, path in found.items()}
    store = open_store(out, NAME, device=place)

    def key(table: str, method: str, seed: int, **_: Any) -> Key:
        settings, digest = f"{known.get(method)!r}, {rows} rows", tables[table]["sha256"]
        return make_key(settings=settings, data=digest, table=table, method=method, seed=seed)

    def expected(line: Mapping[str, Any]) -> Key | None:
        own = line["key"]
        return key(**own) if own["table"] in tables and own["method"] in {*known, TREES} else None

    config: dict[str, Any] = {
        "experiment": NAME,
        "rows": rows,
        "methods": {name: repr(known[name]) for name in names if name in known},
        "tables": tables,
        "device": str(place),
        **made(),
    }
    span = range(FIRST_SEED, FIRST_SEED + seeds)
    wanted = [key(table, name, seed) for seed in span for table in tables for name in names]
    missing = begin(store, config, wanted, expected=expected, fresh=fresh)
    split = partial(development_split, found, rows)
    work: list[Job] = [
        partial(fit_trees, split, own)
        if own["method"] == TREES
        else Training(((own, known[own["method"]]),), split, partial(measure, place.type), place)
        for own in missing
    ]
    run_jobs(store, missing, beside=[[job] for job in work], workers=jobs)
    results = export(store, arrange)
    return write_table(store.folder, read_own(results, NAME, arrange))


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


def arrange(results: Results) -> Results:
    """Return the records sorted by table and variant."""
    order = position([*variants(), TREES])
    records = in_order(results.records, lambda r: (r["table"], order.get(r["method"]), r["seed"]))
    return results._replace(records=records)


def write_table(out: Path, results: Results) -> Path:
    """Print and write, as Markdown, each variant's mean NLL per table, its ratio to plain networks, and seconds."""
    records = results.records
    tables = list(dict.fromkeys(r["table"] for r in records))
    methods = list(dict.fromkeys(r["method"] for r in sorted(records, key=lambda r: _order(r["method"]))))

    def mean(field: str, table: str, method: str) -> float:
        values = [r[field] for r in records if (r["table"], r["method"]) == (table, method) and r[field] is not None]
        return float(np.mean(values)) if values else float("nan")

    lines = ["| variant | " + " | ".join(tables) + " | mean ratio to plain | seconds |"]
    lines.append("|---" * (len(tables) + 3) + "|")
    for method in methods:
        own = [mean("nll", table, method) for table in tables]
        ratios = np.log([value / mean("nll", table, "plain") for value, table in zip(own, tables, strict=True)])
        ratios, seconds = ratios[~np.isnan(ratios)], [mean("seconds", table, method) for table in tables]
        overall = f"{np.exp(ratios.mean()):.3f}" if len(ratios) else "–"
        cells = [f"{value:.4f}" for value in own]
        lines.append(f"| {method} | {' | '.join(cells)} | {overall} | {np.nansum(seconds):.0f} |")
    path = out / "report.md"
    write_text_whole(path, "\n".join(lines) + "\n")
    print("\n".join(lines))
    return path


def _order(method: str) -> int:
    names = [*variants(), TREES]
    return names.index(method) if method in names else len(names)

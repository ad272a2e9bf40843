"""`calibrant bench tables`: every method on every table of a folder, beside scikit-learn's own calibrated networks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from calibrant.experiments.parts import process_pool
from calibrant.experiments.records import predict, resolve_device
from calibrant.experiments.runs import run_all
from calibrant.experiments.shared import checked_methods, made, read_own
from calibrant.experiments.table_data import FLOOR, SIZES, Split, examine, find_tables, prepare
from calibrant.experiments.table_peers import FOLDS, IN_FOLDS, PEERS, SETTINGS, missing_peers, peer_cost, run_peers
from calibrant.experiments.table_report import write_report
from calibrant.experiments.table_store import Store, made_by
from calibrant.methods import METHODS, Calibrated, Ensemble, Method, SelfCalibrated, Standard
from calibrant.report import read_results

LEARNING_RATE = 0.005
"""Adam's for the network baselines, one for all tables: of 0.002, 0.005, 0.01 and 0.02 it gave the lowest mean
validation loss of the stopped network on eleven tables and parts of tables, at seeds that no reported split uses."""

SPLIT = "60 %, and 20 % to stop, calibrate or move outer variables"
"""Which labels our baselines learn from."""


def for_tables(method: Method) -> Method:
    """A method of the registry at its setting for tables: baselines choose their epochs by the number of rows."""
    if isinstance(method, Standard):
        return replace(method, epochs=None, learning_rate=LEARNING_RATE)
    if isinstance(method, Calibrated | Ensemble):
        return replace(method, base=cast(Standard, for_tables(method.base)))
    return method


def table_methods() -> dict[str, Method]:
    """Our methods by id, at their settings for tables."""
    return {name: for_tables(entry.method) for name, entry in METHODS.items()}


def run(
    *,
    data: Path | None = None,
    seeds: int = 5,
    only: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    out: Path,
    device: str = "auto",
    jobs: int | None = None,
    first_seed: int = 0,
    fresh: bool = False,
    source: str | Path | None = None,
) -> Path:
    """Measure every method on every table and write `results.json` and `report.html`; returns the report's path.

    Each table is split 60/20/20 by seed, classes in proportion, and encoded by its training part. Our baselines train
    on 60 % and stop or calibrate on 20 %; methods that hold out their own part are given these 80 % as one. What the
    result file in ``out`` holds already is not measured again, unless the table, the method's settings, the code of our
    methods or scikit-learn's version changed: a long run may be broken off, or split by ``only`` and ``methods``.
    Tables that cannot be read, split or encoded are left out, and the report says why.

    Parameters
    ----------
    data : folder of CSV, TSV and Parquet files
    seeds : how many, from ``first_seed`` on; each is a split and a start of the networks
    only, methods : names of tables and ids of methods; all where not given
    out : where results and report are written
    device : for our methods; scikit-learn's run on the processor
    jobs : processes for scikit-learn's methods; with one, they run in turn with ours. None: all cores beside a GPU,
        else one
    fresh : measure again what the result file holds of these tables and methods
    source : a result file: the report is made from it, and nothing is trained
    """
    if source is not None:
        return write_report(Path(out), read_own(source, "tables"))
    if data is None:
        raise ValueError("data must name a folder of tables, or source a result file to make the report from.")
    own, place = table_methods(), resolve_device(device)
    left_out = missing_peers()
    names = [name for name in checked_methods(methods, [*own, *PEERS]) if name not in left_out]
    for name in left_out:
        if methods is None or name in methods:
            print(f"{name} is left out: {left_out[name]}.", file=sys.stderr)
    found, span = find_tables(Path(data), only), range(first_seed, first_seed + seeds)
    examined = examine(found, span)
    for name, reason in examined.unsuitable.items():
        print(f"The table {name} is left out: {reason}", file=sys.stderr)
    descriptions, tables = examined.tables, {name: found[name] for name in examined.tables}
    file = Path(out) / "results.json"
    config: dict[str, Any] = {
        "experiment": "tables",
        "split": list(SIZES),
        "nll_floor": FLOOR,
        "methods": {n: repr(own[n]) if n in own else f"{n}, {SETTINGS}, cv={FOLDS}" for n in names},
        "made_by": made_by(names),
        "costs": {n: cost_of(own[n]) if n in own else peer_cost(n) for n in names},
        "tables": descriptions,
        "left_out": left_out,
        "notes": _of_other_tables(file, "notes", found) | examined.notes,
        "unsuitable": _of_other_tables(file, "unsuitable", found) | examined.unsuitable,
        "device": str(place),
        **made(),
    }
    store = Store(file, config, fresh=fresh)
    if any(_said(file, key) != config[key] for key in ("notes", "unsuitable")):
        store.add([])  # what is said of tables is kept even where nothing is left to measure
    count = jobs or ((os.cpu_count() or 1) if place.type == "cuda" else 1)

    def missing(table: str, kinds: Mapping[str, Any]) -> list[tuple[int, list[str]]]:
        wanted = [(s, [m for m in names if m in kinds and not store.has(table, m, s)]) for s in span]
        return [(seed, todo) for seed, todo in wanted if todo]

    with process_pool(count) as pool:
        largest_first = sorted(tables, key=lambda t: -descriptions[t]["rows"])
        waiting = [
            pool.submit(run_peers, table, tables[table], seed, todo)
            for table in largest_first
            for seed, todo in missing(table, PEERS)
            if count > 1
        ]
        for table, path in tables.items():
            if todo := missing(table, own):
                store.add(_run_own(table, path, todo, own, place))
            if count == 1:
                for seed, ids in missing(table, PEERS):
                    store.add(run_peers(table, path, seed, ids))
            for finished in [w for w in waiting if w.done()]:
                store.add(finished.result())
                waiting.remove(finished)
            print(f"{table}: done; {len(store.records)} records", file=sys.stderr)
        for finished in as_completed(waiting):
            store.add(finished.result())
    return write_report(Path(out), read_results(store.path))


def _of_other_tables(file: Path, key: str, tables: Mapping[str, Path]) -> dict[str, Any]:
    """What a result file said of tables that are not in this run."""
    return {name: value for name, value in _said(file, key).items() if name not in tables}


def _said(file: Path, key: str) -> dict[str, Any]:
    return read_results(file).config.get(key, {}) if file.exists() else {}


def cost_of(method: Method) -> dict[str, Any]:
    """How many networks a method of ours trains for one classifier, and which labels they learn from."""
    if isinstance(method, SelfCalibrated):
        many = method.folds * method.repeats
        return {"networks": many, "labels": IN_FOLDS} if method.refit else {"networks": 1, "labels": SPLIT}
    return {"networks": method.members if isinstance(method, Ensemble) else 1, "labels": SPLIT}


def _run_own(
    name: str, path: Path, todo: list[tuple[int, list[str]]], own: Mapping[str, Method], device: torch.device
) -> list[dict[str, Any]]:
    """Our methods on one table: all seeds of a method are one population."""
    plan: list[tuple[str, Method, Split]] = []
    for seed, wanted in todo:
        split = prepare(name, path, seed)
        plan += [(method, own[method], split) for method in wanted]
    records = []
    for run in run_all(plan, device=device):
        split = run.prepared
        found = None if run.fitted.failure else predict(run.fitted, split.inputs)
        cost = {"seconds": round(run.cost.seconds, 3), "device": device.type}
        records.append(split.record(run.method, found, run.fitted.failure, **cost))
    return records

"""`studies bench tables`: compare every method on every table of a folder with other libraries' classifiers."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import torch

from calibrant.methods import METHODS, Calibrated, Ensemble, Method, SelfCalibrated, Standard
from calibrant.methods.blend import MEMBERS
from studies.common.jobs import Job, ambient_workers, run_jobs
from studies.common.keys import Key, make_key
from studies.common.options import Device, FirstSeed, Jobs, Option, Seeds, Tables
from studies.common.records import predict, resolve_device
from studies.common.runs import FinishedRun, Planned, Training, populations
from studies.common.shared import checked_methods
from studies.common.store import Line, Store
from studies.common.study import Plan, Study, tell_user
from studies.report import Record
from studies.tables.costs import THREADS, cost_jobs
from studies.tables.data import FLOOR, SIZES, Source, Split, TableFile, examine, find_tables, prepare
from studies.tables.page import make_report, to_terminal
from studies.tables.peers import (
    FORMER,
    NETWORK_ONLY,
    OWN,
    PEERS,
    RIVAL,
    made_by,
    missing_peers,
    peer_settings,
    run_peers,
)

ORDER = [*METHODS, NETWORK_ONLY, FORMER, *PEERS]
"""The methods in the order of the tables."""
LEARNING_RATE = 0.005
"""Adam's learning rate for the network baselines on all tables. Of 0.002, 0.005, 0.01 and 0.02, it gave the lowest mean
validation loss of the stopped network on eleven tables and parts of tables, at seeds that no reported split uses."""


def for_tables(method: Method) -> Method:
    """A registered method with its settings for tables; baselines choose their epochs by the number of rows."""
    if isinstance(method, Standard):
        return replace(method, epochs=None, learning_rate=LEARNING_RATE)
    if isinstance(method, Calibrated | Ensemble):
        return replace(method, base=cast(Standard, for_tables(method.base)))
    if isinstance(method, SelfCalibrated):
        return SelfCalibrated(members=MEMBERS)
    return method


def table_methods() -> dict[str, Method]:
    """Return our methods by id with their settings for tables, and the recommended one with only its networks."""
    methods = {name: for_tables(entry.method) for name, entry in METHODS.items()}
    return methods | {NETWORK_ONLY: SelfCalibrated(), FORMER: SelfCalibrated(embedding=None)}


def plan(
    *,
    data: Tables = None,
    target: Annotated[
        str | None, Option("Column of the labels; default: the one called target, class, label or y.")
    ] = None,
    seeds: Seeds = 5,
    only: Annotated[Sequence[str] | None, Option("Names of tables; default: all.")] = None,
    methods: Annotated[
        Sequence[str] | None,
        Option(
            "Ids of methods: those of `calibrant methods`, self-calibrated-network, self-calibrated-former, and the "
            "rivals: sklearn-mlp, hgb, lightgbm and catboost alone; sklearn-, hgb-, lightgbm- and catboost- with "
            "isotonic, sigmoid or temperature; hgb-cross-calibrated; realmlp-temperature. By default all; rivals that "
            "are not installed are skipped."
        ),
    ] = None,
    device: Device = "auto",
    jobs: Jobs = None,
    first_seed: FirstSeed = 0,
    costs: Annotated[
        bool,
        Option(
            "Measure seconds and memory of single fits instead of scores, on two threads and one split of each table; "
            "default methods: self-calibrated, self-calibrated-former and hgb-temperature."
        ),
    ] = False,
) -> Plan:
    """Compare every method on every table of a folder, on 60/20/20 splits: scores, ranks and paired differences.

    For example:

    python -m studies bench tables --data churn.csv --target churn --methods self-calibrated hgb --seeds 3

    Each table is split by seed, stratified by class, and encoded by its training part. Our baselines train on 60 % and
    stop or calibrate on 20 %; methods that hold out their own part get these 80 % together. Results in --out are reused
    unless the table, the method's settings, the version of the study or scikit-learn's version changed. A long run can
    therefore be interrupted, or divided by --only and --methods. Tables that cannot be read, split or encoded are
    skipped, and the report says why.
    """
    if data is None:
        raise ValueError("--data must name a folder of tables, or --from a result file; got neither.")
    ours, place, left_out = table_methods(), resolve_device("cpu" if costs else device), missing_peers()
    if costs:
        methods, seeds = methods or (OWN, FORMER, RIVAL), 1
    names = [name for name in checked_methods(methods, [*ours, *PEERS]) if name not in left_out]
    for name in left_out:
        if methods is None or name in methods:
            tell_user(f"{name} is left out: {left_out[name]}.")
    paths, span = find_tables(Path(data), only), range(first_seed, first_seed + seeds)
    sources: dict[str, Source] = {n: path if target is None else TableFile(path, target) for n, path in paths.items()}
    examined = examine(sources, span)
    for name, reason in examined.unsuitable.items():
        tell_user(f"The table {name} is left out: {reason}")
    settings = {n: repr(ours[n]) if n in ours else peer_settings(n) for n in names}
    versions = made_by(names)
    config: dict[str, Any] = {
        "split": list(SIZES),
        "nll_floor": FLOOR,
        "methods": settings,
        "made_by": versions,
        "tables": examined.tables,
        "left_out": left_out,
        "notes": {name: examined.notes.get(name, []) for name in sources},
        "unsuitable": {name: examined.unsuitable.get(name) for name in sources},
        "device": str(place),
    }

    def key(data: str, **fields: Any) -> Key:
        return make_key(settings=settings[fields["method"]], code=versions[fields["method"]], data=data, **fields)

    def expected(line: Line) -> Key | None:
        """A table that this command does not have is assumed to be unchanged; an unsuitable one loses its records."""
        fields = line["key"]
        if fields["table"] in examined.unsuitable:
            return make_key(settings="", code="unsuitable", **fields)
        about = examined.tables.get(fields["table"])
        return key(about["sha256"] if about else line["data"], **fields) if fields["method"] in settings else None

    def make(store: Store, missing: list[Key]) -> None:
        if costs:
            return run_jobs(store, missing, here=cost_jobs(missing, ours, sources, examined.tables))
        networks = own_jobs([(k, ours[k["method"]]) for k in missing if k["method"] in ours], sources, place)
        theirs = peer_jobs([k for k in missing if k["method"] in PEERS], sources, examined.tables)
        if place.type == "cuda" and ambient_workers() == 1:
            workers = jobs or os.cpu_count() or 1
            return run_jobs(store, missing, here=networks, beside=[[job] for job in theirs], workers=workers)
        return run_jobs(store, missing, beside=[[job] for job in (*networks, *theirs)], workers=jobs)

    threads = {"threads": THREADS} if costs else {}
    keys = [
        key(about["sha256"], table=table, method=name, seed=seed, **threads)
        for table, about in examined.tables.items()
        for name in names
        for seed in span
    ]
    return Plan(keys, config, make, expected)


def own_jobs(planned: Sequence[Planned], paths: Mapping[str, Source], device: torch.device) -> list[Job]:
    """Measure our methods; all seeds of a method on a table are one population."""
    groups = populations(planned, lambda key: cast(Hashable, key["table"]))
    return [Training(runs, partial(split_of, paths), partial(measure, device.type), device) for runs in groups.values()]


def split_of(paths: Mapping[str, Source], key: Key) -> Split:
    """Return the data that a run is trained on."""
    return prepare(key["table"], paths[key["table"]], key["seed"])


def measure(device: str, key: Key, run: FinishedRun[Split]) -> Record:
    """Return one record."""
    split = run.prepared
    output = None if run.fitted.failure else predict(run.fitted, split.inputs)
    cost = {"seconds": round(run.cost.seconds, 3), "device": device}
    return split.record(key["method"], output, run.fitted.failure, **cost)


def peer_jobs(keys: Sequence[Key], paths: Mapping[str, Source], tables: Mapping[str, Mapping[str, Any]]) -> list[Job]:
    """Measure other libraries' methods; those of one split are one job; the largest table first."""
    splits: dict[tuple[str, int], list[Key]] = {}
    for key in sorted(keys, key=lambda key: -tables[key["table"]]["rows"]):
        splits.setdefault((key["table"], key["seed"]), []).append(key)
    return [partial(fit_peers, paths[table], tuple(of_split)) for (table, _), of_split in splits.items()]


def fit_peers(path: Source, keys: Sequence[Key]) -> dict[Key, Record]:
    """Return the records of some of the other libraries' methods on one split."""
    records = run_peers(keys[0]["table"], path, keys[0]["seed"], [key["method"] for key in keys])
    return dict(zip(keys, records, strict=True))


def extend(config: Mapping[str, Any], records: list[Record]) -> dict[str, Any]:
    """The config with the tables and methods that have records, and with the reasons for those that have none."""
    order = ORDER + sorted({r["method"] for r in records} - set(ORDER))
    tables = list(dict.fromkeys(r["table"] for r in records))
    methods = [name for name in order if any(r["method"] == name for r in records)]
    extended: dict[str, Any] = {"tables": {name: config["tables"][name] for name in tables}}
    for about in ("methods", "made_by"):
        extended[about] = {name: config[about][name] for name in methods if name in config.get(about, {})}
    extended["left_out"] = {n: why for n, why in config.get("left_out", {}).items() if n not in methods}
    extended["notes"] = {n: notes for n, notes in config.get("notes", {}).items() if notes and n in tables}
    extended["unsuitable"] = {n: why for n, why in config.get("unsuitable", {}).items() if why and n not in tables}
    return extended


STUDY = Study(
    "tables",
    axes=("table", "method", "seed", "threads"),
    plan=plan,
    order=lambda config: {"threads": None, "table": None, "method": ORDER, "seed": None},
    extend=extend,
    report=lambda results, path: make_report(results),
    screen=to_terminal,
    needed=("split", "tables", "methods"),
)

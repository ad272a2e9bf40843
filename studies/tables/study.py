"""`studies bench tables`: compare every method on every table of a folder with other libraries' classifiers."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from calibrant.methods import METHODS, Calibrated, Ensemble, Method, SelfCalibrated, Standard
from calibrant.methods.blend import MEMBERS
from calibrant.report import Results
from calibrant.report.results import Record
from studies.common.command import begin, export, open_store, tell_user, usable_folder
from studies.common.contents import in_order, position, read_own
from studies.common.jobs import Job, ambient_workers, run_jobs
from studies.common.keys import Key, make_key
from studies.common.records import predict, resolve_device
from studies.common.runs import FinishedRun, Planned, Training, populations
from studies.common.shared import checked_methods, made
from studies.common.store import Store
from studies.tables.costs import THREADS, cost_jobs
from studies.tables.data import FLOOR, SIZES, Source, Split, TableFile, examine, find_tables, prepare
from studies.tables.ids import FORMER, NETWORK_ONLY, OWN, RIVAL
from studies.tables.page import write_report
from studies.tables.peers import (
    IN_FOLDS,
    PEERS,
    made_by,
    missing_peers,
    peer_cost,
    peer_settings,
    run_peers,
)

NAME = "tables"
LEARNING_RATE = 0.005
"""Adam's learning rate for the network baselines on all tables. Of 0.002, 0.005, 0.01 and 0.02, it gave the lowest mean
validation loss of the stopped network on eleven tables and parts of tables, at seeds that no reported split uses."""

SPLIT = "60 %, and 20 % to stop, calibrate or move outer variables"
"""The labels that our baselines learn from."""


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
    found = {name: for_tables(entry.method) for name, entry in METHODS.items()}
    return found | {NETWORK_ONLY: SelfCalibrated(), FORMER: SelfCalibrated(embedding=None)}


def run(
    *,
    data: Path | None = None,
    target: str | None = None,
    seeds: int = 5,
    only: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    out: Path,
    device: str = "auto",
    jobs: int | None = None,
    first_seed: int = 0,
    fresh: bool = False,
    costs: bool = False,
    source: str | Path | None = None,
) -> Path:
    """Measure every method on every table, write `results.json` and `report.html`, and return the report's path.

    Each table is split 60/20/20 by seed, stratified by class, and encoded by its training part. Our baselines train on
    60 % and stop or calibrate on 20 %; methods that hold out their own part get these 80 % together. Stored runs in
    ``out`` are not measured again, unless the table, the method's settings, the version of the study or scikit-learn's
    version changed. A long run can therefore be interrupted, or divided by ``only`` and ``methods``. Tables that cannot
    be read, split or encoded are skipped, and the report says why.

    Parameters
    ----------
    data : folder of CSV, TSV and Parquet files, or one such file
    target : name of the label column in all tables; by default target, class, label or y
    seeds : the number of seeds, from ``first_seed``; each is a split and an initialisation of the networks
    only, methods : names of tables and ids of methods; by default all
    out : folder for results and report
    device : for our methods; scikit-learn's methods run on the CPU
    jobs : the number of parallel processes. None uses the ambient joblib configuration; if our methods run on a GPU,
        scikit-learn's methods use all cores
    fresh : measure stored runs of these tables and methods again
    costs : measure seconds and memory of single fits instead of scores, on the first split of each table with two
        threads in one process; by default for the methods that the targets compare
    source : a result file or a store to make the report from, without training
    """
    if source is not None:
        return write_report(usable_folder(out), read_own(source, NAME, arrange))
    if data is None:
        raise ValueError(
            "data must name a folder of tables, or source a result file to make the report from; got neither."
        )
    own, place, left_out = table_methods(), resolve_device("cpu" if costs else device), missing_peers()
    if costs:
        methods, seeds = methods or (OWN, FORMER, RIVAL), 1
    names = [name for name in checked_methods(methods, [*own, *PEERS]) if name not in left_out]
    for name in left_out:
        if methods is None or name in methods:
            tell_user(f"{name} is left out: {left_out[name]}.")
    paths, span = find_tables(Path(data), only), range(first_seed, first_seed + seeds)
    found: dict[str, Source] = {n: path if target is None else TableFile(path, target) for n, path in paths.items()}
    store = open_tables(out, place)
    examined = examine(found, span)
    for name, reason in examined.unsuitable.items():
        tell_user(f"The table {name} is left out: {reason}")
    keys = TableKeys({n: repr(own[n]) if n in own else peer_settings(n) for n in names}, examined.tables)
    config: dict[str, Any] = {
        "experiment": NAME,
        "split": list(SIZES),
        "nll_floor": FLOOR,
        "methods": keys.methods,
        "made_by": made_by(names),
        "costs": {n: cost_of(own[n]) if n in own else peer_cost(n) for n in names},
        "tables": examined.tables,
        "left_out": left_out,
        "notes": {name: examined.notes.get(name, []) for name in found},
        "unsuitable": {name: examined.unsuitable.get(name) for name in found},
        "device": str(place),
        **made(),
    }
    store.forget([n for n, line in store.current.items() if line["key"]["table"] in examined.unsuitable])
    threads = THREADS if costs else None
    wanted = [keys.key(table, name, seed, threads) for table in examined.tables for name in names for seed in span]
    missing = begin(store, config, wanted, expected=keys.expected, fresh=fresh)
    if costs:
        run_jobs(store, missing, here=cost_jobs(missing, own, found, examined.tables))
        missing = []
    ours = own_jobs([(key, own[key["method"]]) for key in missing if key["method"] in own], found, place)
    theirs = peer_jobs([key for key in missing if key["method"] in PEERS], found, examined.tables)
    if place.type == "cuda" and ambient_workers() == 1:
        run_jobs(store, missing, here=ours, beside=[[job] for job in theirs], workers=jobs or os.cpu_count() or 1)
    else:
        run_jobs(store, missing, beside=[[job] for job in (*ours, *theirs)], workers=jobs)
    results = export(store, arrange)
    return write_report(store.folder, read_own(results, NAME, arrange))


def open_tables(out: Path, device: torch.device) -> Store:
    """Open the store; raise an error if its records were measured with other settings."""
    store = open_store(out, NAME, device=device)
    for before in store.commands[-1:]:
        for name, value in (("split", list(SIZES)), ("nll_floor", FLOOR)):
            if before["config"].get(name) != value:
                raise ValueError(
                    f"{store.path} was made with {name} {before['config'].get(name)}, and this run has {value}; choose "
                    "another folder for results."
                )
    return store


@dataclass(frozen=True)
class TableKeys:
    """Makes the keys of runs, from the settings of the methods and the digests of the tables."""

    methods: Mapping[str, str]
    tables: Mapping[str, Mapping[str, Any]]

    def key(self, table: str, method: str, seed: int, threads: int | None = None, data: str | None = None) -> Key:
        """Return the key of one run; ``data`` is the table's digest if it is not one of these tables.

        ``threads`` is given for runs that measure costs.
        """
        found = self.tables[table]["sha256"] if data is None else data
        fields: dict[str, Any] = {"table": table, "method": method, "seed": seed}
        fields |= {} if threads is None else {"threads": threads}
        return make_key(settings=self.methods[method], code=made_by([method])[method], data=found, **fields)

    def expected(self, line: Mapping[str, Any]) -> Key | None:
        """Return the current key of a stored run; None for a method that this command does not have.

        Tables that this command does not have are assumed to be unchanged.
        """
        fields = line["key"]
        if fields["method"] not in self.methods:
            return None
        return self.key(**fields, data=None if fields["table"] in self.tables else line["data"])


def own_jobs(planned: Sequence[Planned], paths: Mapping[str, Source], device: torch.device) -> list[Job]:
    """Measure our methods; all seeds of a method on a table are one population."""
    groups = populations(planned, lambda key: cast(Hashable, key["table"]))
    return [Training(own, partial(split_of, paths), partial(measure, device.type), device) for own in groups.values()]


def split_of(paths: Mapping[str, Source], key: Key) -> Split:
    """Return the data that a run is trained on."""
    return prepare(key["table"], paths[key["table"]], key["seed"])


def measure(device: str, key: Key, run: FinishedRun[Split]) -> Record:
    """Return one record."""
    split = run.prepared
    found = None if run.fitted.failure else predict(run.fitted, split.inputs)
    cost = {"seconds": round(run.cost.seconds, 3), "device": device}
    return split.record(key["method"], found, run.fitted.failure, **cost)


def peer_jobs(keys: Sequence[Key], paths: Mapping[str, Source], tables: Mapping[str, Mapping[str, Any]]) -> list[Job]:
    """Measure other libraries' methods; those of one split share models and are one job; the largest table first."""
    splits: dict[tuple[str, int], list[Key]] = {}
    for key in sorted(keys, key=lambda key: -tables[key["table"]]["rows"]):
        splits.setdefault((key["table"], key["seed"]), []).append(key)
    return [partial(fit_peers, paths[table], tuple(own)) for (table, _), own in splits.items()]


def fit_peers(path: Source, keys: Sequence[Key]) -> dict[Key, Record]:
    """Return the records of some of the other libraries' methods on one split."""
    records = run_peers(keys[0]["table"], path, keys[0]["seed"], [key["method"] for key in keys])
    return dict(zip(keys, records, strict=True))


def arrange(results: Results) -> Results:
    """Return the records sorted by table and method; the config lists the tables and methods that have records."""
    config, records = results.config, results.records
    order = position([*METHODS, NETWORK_ONLY, FORMER, *PEERS])
    records = in_order(records, lambda r: (r.get("threads", 0), r["table"], order.get(r["method"]), r["seed"]))
    held = {name: list(dict.fromkeys(r[name] for r in records)) for name in ("table", "method")}
    methods = sorted(held["method"], key=lambda name: order.get(name, len(order)))
    told: dict[str, Any] = {"tables": {name: config["tables"][name] for name in held["table"]}}
    for about in ("methods", "made_by", "costs"):
        told[about] = {name: config[about][name] for name in methods if name in config.get(about, {})}
    told["left_out"] = {n: why for n, why in config.get("left_out", {}).items() if n not in methods}
    told["notes"] = {n: notes for n, notes in config.get("notes", {}).items() if notes and n in told["tables"]}
    told["unsuitable"] = {n: w for n, w in config.get("unsuitable", {}).items() if w and n not in told["tables"]}
    return results._replace(config=config | told, records=records)


def cost_of(method: Method) -> dict[str, Any]:
    """Return how many networks one of our methods trains per classifier, and which labels they learn from."""
    if isinstance(method, SelfCalibrated):
        many = method.folds * method.repeats
        return {"networks": many, "labels": IN_FOLDS} if method.refit else {"networks": 1, "labels": SPLIT}
    return {"networks": method.members if isinstance(method, Ensemble) else 1, "labels": SPLIT}

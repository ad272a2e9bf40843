"""`calibrant bench tables`: every method on every table of a folder, beside scikit-learn's own calibrated networks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import torch

from calibrant.experiments.records import predict, resolve_device
from calibrant.experiments.runs import run_all
from calibrant.experiments.table_data import FLOOR, SIZES, Split, describe, find_tables, prepare
from calibrant.experiments.table_peers import FOLDS, PEERS, SETTINGS, run_peers
from calibrant.experiments.table_report import write_report
from calibrant.methods import METHODS, Calibrated, Ensemble, Method, Standard
from calibrant.report import read_results, write_results

LEARNING_RATE = 0.005
"""Adam's for the network baselines, one for all tables: of 0.002, 0.005, 0.01 and 0.02 it gave the lowest mean
validation loss of the stopped network on eleven tables and parts of tables, at seeds that no reported split uses."""


def for_tables(method: Method) -> Method:
    """A method of the registry at its setting for tables: baselines choose their epochs by the number of rows."""
    if isinstance(method, Standard):
        return replace(method, epochs=None, learning_rate=LEARNING_RATE)
    if isinstance(method, Calibrated | Ensemble):
        return replace(method, base=cast(Standard, for_tables(method.base)))
    return method


def table_methods() -> dict[str, Method]:
    """Our methods by id: the registry's, and its calibrators behind the stopped network, the stronger of the two."""
    own = {name: for_tables(entry.method) for name, entry in METHODS.items()}
    stopped = cast(Standard, own["standard-stopped"])
    return own | {
        f"{name}-stopped": replace(method, base=stopped)
        for name, method in own.items()
        if isinstance(method, Calibrated)
    }


def run(
    *,
    data: Path,
    seeds: int = 5,
    only: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    out: Path,
    device: str = "auto",
    jobs: int | None = None,
    first_seed: int = 0,
) -> Path:
    """Measure every method on every table and write `results.json` and `report.html`; returns the report's path.

    Each table is split 60/20/20 by seed, classes in proportion, and encoded by its training part. Our baselines train
    on 60 % and stop or calibrate on 20 %; methods that hold out their own part are given these 80 % as one. What the
    result file in ``out`` holds already is not measured again, unless the method's settings or the table changed: a
    long run may be broken off, or split by ``only`` and ``methods``.

    Parameters
    ----------
    data : folder of CSV, TSV and Parquet files
    seeds : how many, from ``first_seed`` on; each is a split and a start of the networks
    only, methods : names of tables and ids of methods; all where not given
    out : where results and report are written
    device : for our methods; scikit-learn's run on the processor
    jobs : processes for scikit-learn's methods; with one, they run in turn with ours. None: all cores beside a GPU,
        else one
    """
    own, place = table_methods(), resolve_device(device)
    names = _checked(methods, [*own, *PEERS])
    tables = find_tables(Path(data), only)
    descriptions = {name: describe(path) for name, path in tables.items()}
    config: dict[str, Any] = {
        "split": list(SIZES),
        "nll_floor": FLOOR,
        "methods": {n: repr(own[n]) if n in own else f"{n}, {SETTINGS}, cv={FOLDS}" for n in names},
        "tables": descriptions,
        "device": str(place),
    }
    store = Store(Path(out) / "results.json", config)
    span = range(first_seed, first_seed + seeds)
    count = jobs or ((os.cpu_count() or 1) if place.type == "cuda" else 1)

    def missing(table: str, kinds: Mapping[str, Any]) -> list[tuple[int, list[str]]]:
        wanted = [(s, [m for m in names if m in kinds and not store.has(table, m, s)]) for s in span]
        return [(seed, todo) for seed, todo in wanted if todo]

    with _process_pool(count) as pool:
        largest_first = sorted(tables, key=lambda t: -descriptions[t]["rows"])
        waiting = [
            pool.submit(run_peers, table, tables[table], seed, todo)
            for table in largest_first
            for seed, todo in missing(table, PEERS)
            if pool
        ]
        for table, path in tables.items():
            if todo := missing(table, own):
                store.add(_run_own(table, path, todo, own, place))
            if pool is None:
                for seed, ids in missing(table, PEERS):
                    store.add(run_peers(table, path, seed, ids))
            for finished in [w for w in waiting if w.done()]:
                store.add(finished.result())
                waiting.remove(finished)
            print(f"{table}: done; {len(store.records)} records", file=sys.stderr)
        for finished in as_completed(waiting):
            store.add(finished.result())
    return write_report(Path(out), read_results(store.path))


class Store:
    """The result file: what it holds of equal settings is kept, and every addition is written at once."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config, self.records = path, config, list[dict[str, Any]]()
        if path.exists():
            self._merge(*read_results(path)[::2])

    def _merge(self, before: dict[str, Any], records: list[dict[str, Any]]) -> None:
        for key in ("split", "nll_floor"):
            if before.get(key) != self.config[key]:
                raise ValueError(
                    f"{self.path} was made with {key} {before.get(key)}, and this run has {self.config[key]}; "
                    "choose another folder for results."
                )
        for key, name in (("methods", "method"), ("tables", "table")):
            changed = {n for n, v in self.config[key].items() if before[key].get(n, v) != v}
            if changed:
                print(f"Measured again, for it has changed: {', '.join(sorted(changed))}.", file=sys.stderr)
            records = [r for r in records if r[name] not in changed]
            self.config[key] = before[key] | self.config[key]
        self.records = records

    def has(self, table: str, method: str, seed: int) -> bool:
        """Whether this was measured already."""
        return any((r["table"], r["method"], r["seed"]) == (table, method, seed) for r in self.records)

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Keep records, and write the file."""
        self.records += records
        self.records.sort(key=lambda r: (r["table"], list(self.config["methods"]).index(r["method"]), r["seed"]))
        write_results(self.path, self.config, self.records)


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
        cost = {"seconds": round(run.cost.seconds, 3)}
        records.append(split.record(run.method, found, run.fitted.failure, **cost))
    return records


@contextmanager
def _process_pool(jobs: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes beside this one; none for one job."""
    if jobs == 1:
        yield None
        return
    # Not forked: a process that has used a GPU cannot be.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        yield pool


def _one_thread() -> None:
    """Each process has one core: threads of linear algebra would fight for them."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    torch.set_num_threads(1)


def _checked(methods: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    if unknown := [m for m in methods or () if m not in known]:
        raise ValueError(f"there is no method called {', '.join(unknown)}; the methods are {', '.join(known)}.")
    return [m for m in known if methods is None or m in methods]

"""Seconds and memory of single fits, and seconds to predict: one split of each table, one process, two threads.

Scores come from populations and from several parallel processes, so their seconds say little about one fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from calibrant.methods import Method
from studies.common.jobs import Job
from studies.common.keys import Key
from studies.common.runs import Meter, run_all, threads_limited_to
from studies.report import Record
from studies.tables.data import Source, prepare
from studies.tables.peers import peer

THREADS = 2
PREDICTED = 100_000
"""The number of rows to predict: the test rows of the split, repeated."""


def is_cost(record: Mapping[str, Any]) -> bool:
    """Whether a record holds the cost of a single fit; the others hold scores."""
    return "threads" in record


def cost_jobs(
    keys: Sequence[Key],
    methods: Mapping[str, Method],
    paths: Mapping[str, Source],
    tables: Mapping[str, Mapping[str, Any]],
) -> list[Job]:
    """Measure one fit per key: the methods of a table one after the other, the smallest table first."""
    order = sorted(keys, key=lambda key: tables[key["table"]]["rows"])
    return [partial(measure_cost, paths[key["table"]], key, methods.get(key["method"])) for key in order]


def measure_cost(path: Source, key: Key, method: Method | None) -> dict[Key, Record]:
    """Return the record of one fit; without ``method``, that of another library's classifier."""
    split = prepare(key["table"], path, key["seed"])
    failure = None
    with threads_limited_to(key["threads"]):
        if method is not None:
            (run,) = run_all([(key["method"], method, split)])
            cost, failure = run.cost, run.fitted.failure
            predict: Callable[[], Any] = partial(run.fitted.probs, split.inputs[repeated_rows(len(split.inputs))])
        else:
            x, y = split.pooled()
            model, meter = peer(key["method"], y, split.seed), Meter()
            with meter([0]):
                model.fit(x, y)
            cost = meter.costs[0]
            predict = partial(model.predict_proba, split.inputs.numpy()[repeated_rows(len(split.inputs))])
        begin = time.perf_counter()
        if failure is None:
            predict()
        predicted = time.perf_counter() - begin
    measured = {"seconds": round(cost.seconds, 3), "peak_memory": cost.peak_memory, "failure": failure, "device": "cpu"}
    return {key: dict(key.fields) | measured | {"predict_seconds": None if failure else round(predicted, 3)}}


def repeated_rows(rows: int) -> np.ndarray:
    """Return the positions of ``PREDICTED`` rows in a part with this many rows."""
    return np.arange(PREDICTED) % rows


def costs_of(records: Sequence[Record], quantity: str, methods: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return a cost of single fits by table and method, for tables on which it was measured for all of these methods.

    It is "seconds", "peak_memory" (beyond the data, in megabytes) or "predict_seconds" (for ``PREDICTED`` rows).
    """
    unit = 1e6 if quantity == "peak_memory" else 1
    costs: dict[str, dict[str, float]] = {}
    for record in filter(is_cost, records):
        number = record.get(quantity)
        if record["method"] in methods and record["failure"] is None and number is not None:
            costs.setdefault(record["table"], {})[record["method"]] = number / unit
    return {table: by_method for table, by_method in costs.items() if len(by_method) == len(methods)}

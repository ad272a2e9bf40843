"""Plan runs of methods on the synthetic sets, and train them as populations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from calibrant.methods import METHODS, Method, SelfCalibrated
from calibrant.methods.blend import MEMBERS
from studies.common.jobs import Job, ambient_workers, run_jobs
from studies.common.keys import Key, make_key
from studies.common.records import Prepared, prepare, shape_of
from studies.common.runs import FinishedRun, Training, populations
from studies.common.shared import checked_methods
from studies.common.store import Line, Store
from studies.common.study import Plan
from studies.report import Record

Measure = Callable[[Key, FinishedRun[Prepared]], Record]


def synthetic_plan(
    methods: Mapping[tuple[str, str], Method],
    seeds: Sequence[int],
    measure: Measure,
    config: Mapping[str, Any],
    *,
    device: torch.device,
    jobs: int | None = None,
) -> Plan:
    """Methods, by set and id, on each seed.

    With ``jobs``, or inside ``joblib.parallel_config``, every population is a separate job. Otherwise this process
    trains the populations one after the other. With a GPU, the sets of each shape train in a separate process, because
    the GPU would idle while Python prepares a population. The largest part stays in this process.
    """

    def key(**fields: Any) -> Key:
        return make_key(settings=repr(methods[fields["dataset"], fields["method"]]), **fields)

    def expected(line: Line) -> Key | None:
        fields = line["key"]
        return key(**fields) if (fields["dataset"], fields["method"]) in methods else None

    def make(store: Store, missing: list[Key]) -> None:
        planned = [(key, methods[key["dataset"], key["method"]]) for key in missing]
        groups = populations(planned, lambda key: shape_of(key["dataset"]))
        trainings = [Training(group, prepare_run, measure, device) for group in groups.values()]
        if trainings and device.type == "cuda" and jobs is None and ambient_workers() == 1:
            here, *others = parts_of(trainings)
            run_jobs(store, missing, here=here, beside=others, workers=max(1, len(others)))
        else:
            run_jobs(store, missing, beside=[[training] for training in trainings], workers=jobs)

    keys = [key(dataset=dataset, method=name, seed=seed) for dataset, name in methods for seed in seeds]
    return Plan(keys, {**config, "device": str(device)}, make, expected)


def parts_of(trainings: Sequence[Training[Prepared]]) -> list[list[Job]]:
    """Group trainings by the shape of their sets, largest group first."""
    parts: dict[Hashable, list[Training[Prepared]]] = {}
    for training in trainings:
        first, _ = training.planned[0]
        parts.setdefault(shape_of(first["dataset"]), []).append(training)
    by_size = sorted(parts.values(), key=lambda part: -sum(len(training.planned) for training in part))
    return [list(part) for part in by_size]


def prepare_run(key: Key) -> Prepared:
    """The data of a run."""
    return prepare(key["dataset"], key["seed"])


POOLED = "self-calibrated-pool"
"""The default of SelfCalibratedClassifier: networks with embedded columns, boosted trees and a linear model."""


def synthetic_methods() -> dict[str, Method]:
    """Return all methods that these studies know, by id."""
    return {name: entry.method for name, entry in METHODS.items()} | {POOLED: SelfCalibrated(members=MEMBERS)}


def chosen_methods(names: Sequence[str] | None) -> dict[str, Method]:
    """Return the named methods; by default the registered ones. The pool must be named, because it takes longer."""
    methods = synthetic_methods()
    return {name: methods[name] for name in checked_methods(list(METHODS) if names is None else names, methods)}

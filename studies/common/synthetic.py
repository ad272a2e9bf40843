"""Plan runs of methods on the synthetic sets, and train those that the store lacks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from calibrant.methods import Method
from calibrant.report.results import Record
from studies.common.command import begin
from studies.common.jobs import Job, ambient_workers, run_jobs
from studies.common.keys import Key, make_key
from studies.common.records import Prepared, prepare, shape_of
from studies.common.runs import FinishedRun, Planned, Training, populations
from studies.common.store import Line, Store

Measure = Callable[[Key, FinishedRun[Prepared]], Record]


@dataclass(frozen=True)
class Plan:
    """Methods on sets, for each seed and, if ``rates`` is given, for each share of flipped training labels."""

    methods: Mapping[tuple[str, str], Method]
    """Methods by (name of the set, id of the method)."""
    seeds: Sequence[int]
    rates: Sequence[float] | None = None

    def expected(self, line: Line) -> Key | None:
        """The key that a stored run has in this plan; None if the plan lacks its method or set."""
        fields = line["key"]
        method = self.methods.get((fields["dataset"], fields["method"]))
        return None if method is None else make_key(settings=repr(method), **fields)

    def runs(self) -> list[Planned]:
        """All runs, by set and method."""
        levels: list[dict[str, Any]] = [{}] if self.rates is None else [{"rate": rate} for rate in self.rates]
        return [
            (make_key(settings=repr(method), dataset=dataset, method=name, **level, seed=seed), method)
            for (dataset, name), method in self.methods.items()
            for level in levels
            for seed in self.seeds
        ]


def run_plan(
    store: Store,
    plan: Plan,
    config: Mapping[str, Any],
    measure: Measure,
    *,
    device: torch.device,
    jobs: int | None = None,
    fresh: bool = False,
) -> None:
    """Train and measure the runs of a plan that the store lacks.

    With ``jobs``, or inside ``joblib.parallel_config``, every population is a separate job. Otherwise this process
    trains the populations one after the other. With a GPU, the sets of each shape train in a separate process, because
    the GPU would idle while Python prepares a population. The largest part stays in this process.
    """
    runs = plan.runs()
    missing = begin(store, config, [key for key, _ in runs], expected=plan.expected, fresh=fresh)
    methods = dict(runs)
    groups = populations([(key, methods[key]) for key in missing], lambda key: shape_of(key["dataset"]))
    trainings = [Training(own, prepare_run, measure, device) for own in groups.values()]
    if trainings and device.type == "cuda" and jobs is None and ambient_workers() == 1:
        here, *others = parts_of(trainings)
        run_jobs(store, missing, here=here, beside=others, workers=max(1, len(others)))
    else:
        run_jobs(store, missing, beside=[[training] for training in trainings], workers=jobs)


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
    fields = dict(key.fields)
    return prepare(fields["dataset"], fields["seed"], fields.get("rate", 0.0))

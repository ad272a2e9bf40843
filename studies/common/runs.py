"""Train runs as populations, and measure the time and memory of each run."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from threadpoolctl import threadpool_limits

from calibrant.bilevel import Callback
from calibrant.methods import BO4SC, Calibrated, Fitted, Method, Samples, Standard, Task, fit_all
from calibrant.methods import Job as Fit
from studies.common.keys import Key
from studies.common.progress import StudyProgress
from studies.common.records import Prepared, measure
from studies.report import Record


@dataclass(frozen=True)
class Cost:
    """Cost of one run: the population's wall-clock time divided by its members, and the population's peak memory."""

    seconds: float
    peak_memory: int | None
    """Bytes above the usage before the run, on the GPU if one is used; None if the system does not report it."""
    members: int


class HasTask(Protocol):
    """Anything with a training task, such as a set at a seed or a split of a table."""

    @property
    def task(self) -> Task:
        """The training task."""


Given = TypeVar("Given", bound=HasTask)


@dataclass(frozen=True)
class FinishedRun(Generic[Given]):
    """A method after training: its id, its settings, its data, the classifier, and the cost."""

    method: str
    settings: Method
    prepared: Given
    fitted: Fitted
    cost: Cost

    def record(self: FinishedRun[Prepared]) -> dict[str, Any]:
        """The run as one record of a result file."""
        measured = measure(self.fitted, self.prepared)
        return {"dataset": measured.pop("dataset"), "method": self.method, **measured, **asdict(self.cost)}


Planned = tuple[Key, Method]
"""A run to make: its key, whose field ``method`` holds the method's id, and the method."""


@dataclass(frozen=True)
class Training(Generic[Given]):
    """A job that trains runs as populations and measures them.

    ``prepare`` makes the data of a run, and ``measure`` makes the record of a finished run. Both must be functions of a
    module, or partials of such functions, so that the job can be pickled.
    """

    planned: tuple[Planned, ...]
    prepare: Callable[[Key], Given]
    measure: Callable[[Key, FinishedRun[Given]], Record]
    device: torch.device

    def __call__(self) -> dict[Key, Record]:
        prepared: dict[Hashable, Given] = {}
        for key, _ in self.planned:
            if (place := _place(key)) not in prepared:
                prepared[place] = self.prepare(key)
        if StudyProgress.active is not None:
            StudyProgress.active.start(key for key, _ in self.planned)
        plan = [(key["method"], method, prepared[_place(key)]) for key, method in self.planned]
        runs = run_all(plan, device=self.device)
        with threads_limited_to(min(FEW, torch.get_num_threads())):  # joblib limits those of its workers
            return {key: self.measure(key, run) for (key, _), run in zip(self.planned, runs, strict=True)}


def _place(key: Key) -> Hashable:
    """Identifies the data of a run: all fields of its key except the method."""
    return tuple(field for field in key.fields if field[0] != "method")


def populations(
    planned: Sequence[Planned], together: Callable[[Key], Hashable]
) -> dict[tuple[Hashable, ...], tuple[Planned, ...]]:
    """Group runs that can train as one population, by what they share.

    Runs of a group have the same structure and the same value of ``together``. A calibrator joins the group of the
    network that it calibrates.
    """
    groups: dict[tuple[Hashable, ...], list[Planned]] = {}
    for key, method in planned:
        trained = method.base if isinstance(method, Calibrated) else method
        groups.setdefault((together(key), *trained.structure()), []).append((key, method))
    return {shared: tuple(runs) for shared, runs in groups.items()}


def run_all(
    plan: Sequence[tuple[str, Method, Given]], *, device: torch.device | str | None = None
) -> list[FinishedRun[Given]]:
    """Train every entry (id, method, data) and return the finished runs in the same order.

    Entries of one structure and shape train as one population. A calibrator reuses the network of its base method if
    both have the same data; its seconds include the training of that network.
    """
    first: dict[tuple[Method, int], int] = {}
    jobs: list[Fit] = []

    def position(method: Method, prepared: HasTask) -> int:
        key = method, id(prepared)
        if key not in first:
            first[key] = len(jobs)
            jobs.append((method, prepared.task))
        return first[key]

    trained = [position(m.base if isinstance(m, Calibrated) else m, prepared) for _, m, prepared in plan]
    warm_up(None if device is None else str(device))
    meter = Meter(device)
    fitted = fit_all(jobs, device=device, callbacks=progress, on_group=meter, n_jobs=1)  # a job runs in one process
    runs = []
    for (name, method, prepared), k in zip(plan, trained, strict=True):
        cost, model = meter.costs[k], fitted[k]
        if isinstance(method, Calibrated):
            begin = time.perf_counter()
            model = method.calibrate(model, prepared.task)
            cost = Cost(cost.seconds + time.perf_counter() - begin, cost.peak_memory, cost.members)
        runs.append(FinishedRun(name, method, prepared, model, cost))
    return runs


@cache
def warm_up(device: str | None) -> None:
    """Train two tiny problems once, so that the time and memory of loading libraries are not counted for any run."""
    inputs, labels = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    tasks = [Task(Samples(inputs, labels), Samples(inputs, labels), 2, seed) for seed in range(2)]
    fit_all([(m, t) for m in (Standard(epochs=5), BO4SC(epochs=5)) for t in tasks], device=device, n_jobs=1)


FEW = 4
"""Threads for measuring: it works on small arrays, for which many threads are slower."""


@contextmanager
def threads_limited_to(number: int) -> Iterator[None]:
    """Compute with this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number):
            yield
    finally:
        torch.set_num_threads(before)


def progress(description: str) -> list[Callback]:
    """The progress of the study, in the process that shows it."""
    return [] if StudyProgress.active is None else [StudyProgress.active]


class Meter:
    """Measures the populations of `fit_all`; ``costs`` maps a job's position in the list to its cost."""

    def __init__(self, device: torch.device | str | None = None) -> None:
        self.gpu = device is not None and torch.device(device).type == "cuda"
        self.costs: dict[int, Cost] = {}

    @contextmanager
    def __call__(self, positions: list[int]) -> Iterator[None]:
        held = self._restart()
        begin = time.perf_counter()
        yield
        if self.gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        peak = self._peak()
        used = None if held is None or peak is None else max(0, peak - held)
        self.costs.update({p: Cost(seconds / len(positions), used, len(positions)) for p in positions})

    def _restart(self) -> int | None:
        """Reset the peak, and return the bytes in use now."""
        if self.gpu:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        _give_back()
        try:
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to the resident size
        except OSError:
            return None
        return self._peak()

    def _peak(self) -> int | None:
        if self.gpu:
            return torch.cuda.max_memory_allocated()
        if sys.platform != "linux":
            return None
        # getrusage would start at the memory of the parent process at the time of the fork.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), None)


def _give_back() -> None:
    """Return freed memory to the system. Otherwise a run could reuse it and seem to need no memory."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        return

"""Training runs as populations, with what each run cost."""

from __future__ import annotations

import ctypes
import gc
import os
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

from calibrant.bilevel import Callback, ProgressBar
from calibrant.experiments.common.keys import Key
from calibrant.experiments.common.records import Prepared, measure
from calibrant.methods import BO4SC, Calibrated, Fitted, Method, Part, Standard, Task, fit_all
from calibrant.methods import Job as Fit
from calibrant.report.results import Record


@dataclass(frozen=True)
class Cost:
    """Of one run: wall-clock seconds of its population divided by its members, and the population's peak memory."""

    seconds: float
    peak_memory: int | None
    """Bytes beyond what was held before, on the GPU if one was used; None where the system does not say."""
    members: int


class HasTask(Protocol):
    """What can be trained on: a set at a seed, a split of a table."""

    @property
    def task(self) -> Task:
        """The training problem."""


Given = TypeVar("Given", bound=HasTask)


@dataclass(frozen=True)
class Run(Generic[Given]):
    """A trained method: its id, its settings, what it was trained on, the classifier, and the cost."""

    method: str
    settings: Method
    prepared: Given
    fitted: Fitted
    cost: Cost

    def record(self: Run[Prepared]) -> dict[str, Any]:
        """All that is reported of it, as one row of a result file."""
        measured = measure(self.fitted, self.prepared)
        return {"dataset": measured.pop("dataset"), "method": self.method, **measured, **asdict(self.cost)}


Planned = tuple[Key, Method]
"""A run that an experiment wants: its key, whose field ``method`` names the method, and the method itself."""


@dataclass(frozen=True)
class Training(Generic[Given]):
    """A job that trains some runs as populations and measures them.

    ``prepare`` makes what a run is trained on, and ``measure`` makes the record of a trained run; both must be
    functions of a module, or partials of such.
    """

    planned: tuple[Planned, ...]
    prepare: Callable[[Key], Given]
    measure: Callable[[Key, Run[Given]], Record]
    device: torch.device

    def __call__(self) -> dict[Key, Record]:
        prepared: dict[Hashable, Given] = {}
        for key, _ in self.planned:
            if (place := _place(key)) not in prepared:
                prepared[place] = self.prepare(key)
        plan = [(key["method"], method, prepared[_place(key)]) for key, method in self.planned]
        runs = run_all(plan, device=self.device)
        with few_threads():
            return {key: self.measure(key, run) for (key, _), run in zip(self.planned, runs, strict=True)}


def _place(key: Key) -> Hashable:
    """What a run is trained on: all of its fields but the method."""
    return tuple(field for field in key.fields if field[0] != "method")


def populations(
    planned: Sequence[Planned], together: Callable[[Key], Hashable]
) -> dict[tuple[Hashable, ...], tuple[Planned, ...]]:
    """Runs that may train as one population, by what they share.

    These are runs of one structure whose ``together`` is the same, and calibrators with the network behind them.
    """
    found: dict[tuple[Hashable, ...], list[Planned]] = {}
    for key, method in planned:
        trained = method.base if isinstance(method, Calibrated) else method
        found.setdefault((together(key), *trained.structure()), []).append((key, method))
    return {shared: tuple(own) for shared, own in found.items()}


def run_all(plan: Sequence[tuple[str, Method, Given]], *, device: torch.device | str | None = None) -> list[Run[Given]]:
    """Train every entry (id, method, what it is trained on), in the order given.

    Entries of one structure and shape run as one population. A calibrator whose base is trained anyway, on the same
    set and seed, is fitted behind that network instead of training another; its seconds include the base's.
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
    fitted = fit_all(jobs, device=device, callbacks=progress, on_group=meter, n_jobs=1)  # a job stays in its process
    runs = []
    for (name, method, prepared), k in zip(plan, trained, strict=True):
        cost, model = meter.costs[k], fitted[k]
        if isinstance(method, Calibrated):
            begin = time.perf_counter()
            model = method.calibrate(model, prepared.task)
            cost = Cost(cost.seconds + time.perf_counter() - begin, cost.peak_memory, cost.members)
        runs.append(Run(name, method, prepared, model, cost))
    return runs


@cache
def warm_up(device: str | None) -> None:
    """Train two tiny problems once, so that what libraries load on first use is counted as nobody's time and memory."""
    inputs, labels = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    tasks = [Task(Part(inputs, labels), Part(inputs, labels), 2, seed) for seed in range(2)]
    fit_all([(m, t) for m in (Standard(epochs=5), BO4SC(epochs=5)) for t in tasks], device=device, n_jobs=1)


FEW = 4


@contextmanager
def few_threads() -> Iterator[None]:
    """Measure with a few threads: the pieces are small, and those of a large machine would mostly wait for one another.

    Where a machine has a GPU, parts of an experiment are measured side by side, and mostly three at a time.
    """
    cores = os.cpu_count() or 1
    threads = torch.get_num_threads()  # a worker of joblib has its share of the cores
    few = min(FEW, threads, max(1, cores // (3 if torch.cuda.is_available() else 1)))
    torch.set_num_threads(few)
    try:
        with threadpool_limits(few):
            yield
    finally:
        torch.set_num_threads(threads)


def progress(description: str) -> list[Callback]:
    """A bar for each population."""
    return [ProgressBar(description)]


class Meter:
    """The stop-watch of `fit_all`'s populations: ``costs`` by position in the list of jobs."""

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
        """Forget the peak so far; bytes that are held now."""
        if self.gpu:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        _give_back()
        try:
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again at what is resident now
        except OSError:
            return None
        return self._peak()

    def _peak(self) -> int | None:
        if self.gpu:
            return torch.cuda.max_memory_allocated()
        if sys.platform != "linux":
            return None
        # Not getrusage: its maximum begins with what the parent process held when it forked.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), None)


def _give_back() -> None:
    """Return freed memory to the system: a run that lives on what the one before it left would seem to need none."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        return

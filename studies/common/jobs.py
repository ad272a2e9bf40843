"""Run an experiment's jobs in this process or in joblib's workers.

A job trains one population, or fits one other model, and returns its records. Choose the number and kind of workers
with ``--jobs N`` or with a surrounding ``joblib.parallel_config(backend=…, n_jobs=…)``. The process that runs a job
adds the records to the store, so they are on disk when the job ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from joblib import Parallel, delayed, effective_n_jobs
from joblib.parallel import get_active_backend

from calibrant.base.parallel import refuse_threads
from studies.common.keys import Key
from studies.common.progress import StudyProgress
from studies.common.store import Store
from studies.report import Record

Job = Callable[[], dict[Key, Record]]
"""A job must be picklable to run in another process: a function of a module, or a callable dataclass."""


def run_jobs(
    store: Store,
    missing: Iterable[Key] = (),
    *,
    here: Sequence[Job] = (),
    beside: Sequence[Sequence[Job]] = (),
    workers: int | None = None,
) -> None:
    """Run the jobs ``here`` in this process and, at the same time, each list of ``beside`` in a worker.

    ``missing`` are the keys of their records, to show the progress.

    If ``workers`` is None, the surrounding joblib configuration decides. Its default is one worker: this process, which
    then runs ``beside`` after ``here``.
    """
    with StudyProgress(missing) as progress:
        running = _in_workers(store, beside, workers) if beside else iter(())
        work(store, here)
        for found in running:
            # A worker on another machine may not reach the folder of the store.
            store.add({key: record for key, record in found.items() if not store.has(key)})
            progress.finish(found)


def work(store: Store, jobs: Sequence[Job]) -> dict[Key, Record]:
    """Run jobs one after the other; store the records of each job before the next one starts."""
    every: dict[Key, Record] = {}
    for job in jobs:
        found = job()
        store.add(found)
        if StudyProgress.active is not None:
            StudyProgress.active.finish(found)
        every |= found
    return every


def ambient_workers() -> int:
    """The number of workers that a surrounding ``joblib.parallel_config`` asks for; 1 without one."""
    return int(effective_n_jobs(None))


def _in_workers(store: Store, lists: Sequence[Sequence[Job]], workers: int | None) -> Iterator[dict[Key, Record]]:
    if effective_n_jobs(workers) > 1:
        refuse_threads()
    calls = [delayed(work)(store, jobs) for jobs in lists]
    settings: dict[str, Any] = {"n_jobs": workers, "batch_size": 1, "pre_dispatch": "all"}
    if get_active_backend()[0].supports_return_generator:
        found: Iterator[dict[Key, Record]] = Parallel(**settings, return_as="generator_unordered")(calls)
        return found
    return _in_slices(calls, settings)


def _in_slices(calls: Sequence[Any], settings: dict[str, Any]) -> Iterator[dict[Key, Record]]:
    """For backends that return all results at the end, such as Ray: submit one job per worker at a time."""
    with Parallel(**settings) as parallel:
        size = max(1, int(effective_n_jobs(settings["n_jobs"])))
        for start in range(0, len(calls), size):
            yield from parallel(calls[start : start + size])

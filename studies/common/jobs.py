"""Run an experiment's jobs in this process or in joblib's workers.

A job trains one population, or fits one other model, and returns its records. Choose the number and kind of workers
with ``--jobs N`` or with a surrounding ``joblib.parallel_config(backend=…, n_jobs=…)``. The process that runs a job
adds the records to the store, so they are on disk when the job ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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
        running = _in_workers(store, beside, workers) if beside else ()
        work(store, here)
        for records in running:
            # A worker on another machine may not reach the folder of the store.
            store.add({key: record for key, record in records.items() if not store.has(key)})
            progress.finish(records)


def work(store: Store, jobs: Sequence[Job]) -> dict[Key, Record]:
    """Run jobs one after the other; store the records of each job before the next one starts."""
    every: dict[Key, Record] = {}
    for job in jobs:
        records = job()
        store.add(records)
        if StudyProgress.active is not None:
            StudyProgress.active.finish(records)
        every |= records
    return every


def ambient_workers() -> int:
    """The number of workers that a surrounding ``joblib.parallel_config`` asks for; 1 without one."""
    return int(effective_n_jobs(None))


def _in_workers(store: Store, lists: Sequence[Sequence[Job]], workers: int | None) -> Iterable[dict[Key, Record]]:
    if effective_n_jobs(workers) > 1:
        refuse_threads()
    # Other backends, such as Ray, return all results at the end.
    unordered = get_active_backend()[0].supports_return_generator
    parallel = Parallel(
        n_jobs=workers, batch_size=1, pre_dispatch="all", return_as="generator_unordered" if unordered else "list"
    )
    records: Iterable[dict[Key, Record]] = parallel(delayed(work)(store, jobs) for jobs in lists)
    return records

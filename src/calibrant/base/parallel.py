"""Run lists of jobs through joblib."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


def map_jobs(
    function: Callable[..., Result], jobs: Iterable[tuple[Any, ...]], n_jobs: int | None = None
) -> list[Result]:
    """Return ``[function(*job) for job in jobs]``, computed in this process or in joblib's workers.

    With ``n_jobs=None``, jobs run one at a time in this process, unless a surrounding
    ``joblib.parallel_config(n_jobs=…)`` asks for more. Threads raise an error, because all threads share torch's global
    random generator, which training seeds.
    """
    from joblib import Parallel, delayed, effective_n_jobs

    if effective_n_jobs(n_jobs) == 1:
        return [function(*job) for job in jobs]
    refuse_threads()
    return list(Parallel(n_jobs=n_jobs)(delayed(function)(*job) for job in jobs))


def refuse_threads() -> None:
    """Raise an error if the surrounding joblib configuration asks for threads."""
    from joblib.parallel import ThreadingBackend, get_active_backend

    if isinstance(get_active_backend()[0], ThreadingBackend):
        raise ValueError(
            "Jobs cannot run as threads, because all threads share torch's random generator; use processes: "
            "joblib.parallel_config(backend='loky', n_jobs=…)."
        )

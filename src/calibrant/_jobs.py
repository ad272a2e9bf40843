"""Lists of jobs through joblib, whose configuration says who runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_jobs(
    function: Callable[..., Result], jobs: Iterable[tuple[Any, ...]], n_jobs: int | None = None
) -> list[Result]:
    """``[function(*job) for job in jobs]``: in this process, or wherever ``joblib.parallel_config`` says.

    ``n_jobs=None`` is one at a time in this process, unless a surrounding ``joblib.parallel_config(n_jobs=…)`` says
    more. Threads are refused: training seeds torch's global generator, which all threads share.
    """
    from joblib import Parallel, delayed, effective_n_jobs
    from joblib.parallel import ThreadingBackend, get_active_backend

    if effective_n_jobs(n_jobs) == 1:
        return [function(*job) for job in jobs]
    if isinstance(get_active_backend()[0], ThreadingBackend):
        raise ValueError(
            "Jobs cannot run as threads, because all threads share torch's random numbers; use processes: "
            "joblib.parallel_config(backend='loky', n_jobs=…)."
        )
    return list(Parallel(n_jobs=n_jobs)(delayed(function)(*job) for job in jobs))

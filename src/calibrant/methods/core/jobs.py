"""``fit_all``: train any list of jobs, grouped into populations that joblib can run in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from calibrant.base.parallel import map_jobs
from calibrant.bilevel import Callback, NonFiniteError
from calibrant.methods.core.method import Method
from calibrant.methods.core.results import Failed, Fitted
from calibrant.methods.core.task import Task

Job = tuple[Method, Task]
ROWS_AT_ONCE = {"cpu": 262_144, "cuda": 2_097_152}
"""The most rows whose activations one population keeps, over all networks and steps (10 KB each at 64 units)."""


def fit_all(
    jobs: Sequence[Job],
    *,
    device: torch.device | str | None = None,
    callbacks: Callable[[str], Sequence[Callback]] | None = None,
    on_group: Callable[[list[int]], Any] | None = None,
    n_jobs: int | None = None,
) -> list[Fitted]:
    """Train every job and return the results in the same order.

    Jobs with the same structure and shape run as one population, or as a few if one would need too much memory. A job
    that fails does not stop the others; ``failure`` of its result gives the reason.

    Parameters
    ----------
    jobs : sequence of (Method, Task)
        Jobs may differ in seed, data set and settings; a grid search is a longer list.
    device : str or torch.device, optional
        The device for training.
    callbacks : callable ``description -> callbacks``, optional
        Creates the callbacks of each population (a progress bar, for example) in the process that trains it.
    on_group : callable ``positions -> context manager``, optional
        A context for the training of each population, in the process that trains it; useful to measure time.
    n_jobs : int, optional
        How many populations to train in parallel, as in joblib. None: one at a time in this process, or as set by a
        surrounding ``joblib.parallel_config(backend="loky" | "ray", n_jobs=…)``. A population is never split.

    Returns
    -------
    list of Fitted
        One result for each job.

    Examples
    --------
    >>> import torch
    >>> from calibrant.methods import Samples, Standard, Task, fit_all
    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> task = Task(Samples(x, (x[:, 0] > 0).long()), None, n_classes=2)
    >>> slow, fast = fit_all([(Standard(epochs=20, learning_rate=rate), task) for rate in (0.001, 0.01)])
    >>> fast.probs(x).shape
    torch.Size([40, 2])
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, (method, task) in enumerate(jobs):
        groups.setdefault((method.structure(), task.shape), []).append(position)
    kind = "cpu" if device is None else torch.device(device).type
    limit = ROWS_AT_ONCE.get(kind, ROWS_AT_ONCE["cpu"])
    pieces: list[list[int]] = []
    for group in groups.values():
        method, task = jobs[group[0]]
        size = max(1, limit // method.rows_at_once(task))
        pieces += [group[k : k + size] for k in range(0, len(group), size)]
    work = [(positions, [jobs[p] for p in positions], device, callbacks, on_group) for positions in pieces]
    results: dict[int, Fitted] = {}
    for positions, fitted in zip(pieces, map_jobs(_fit_group, work, n_jobs), strict=True):
        results.update(zip(positions, fitted, strict=True))
    return [results[p] for p in range(len(jobs))]


def _fit_group(
    positions: list[int],
    jobs: Sequence[Job],
    device: torch.device | str | None,
    callbacks: Callable[[str], Sequence[Callback]] | None,
    on_group: Callable[[list[int]], Any] | None,
) -> list[Fitted]:
    """Train one population. A network that diverges gives a result with ``failure``, even if it runs alone."""
    methods = [method for method, _ in jobs]
    different = {id(task): task for _, task in jobs}  # jobs that share a task share its tensors too
    moved = {key: task.to(device) for key, task in different.items()}
    tasks = [moved[id(task)] for _, task in jobs]
    group_callbacks = callbacks(f"{type(methods[0]).__name__} × {len(jobs)}") if callbacks else ()
    with on_group(positions) if on_group else nullcontext():
        try:
            return methods[0].fit_group(methods, tasks, callbacks=group_callbacks)
        except NonFiniteError as error:
            return [Failed(str(error), task.n_classes) for task in tasks]

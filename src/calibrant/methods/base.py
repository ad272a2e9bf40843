"""Methods as values, and the one function that trains them: any mixture of jobs, grouped into populations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.bilevel import Callback, NonFiniteError
from calibrant.methods.task import Failed, Fitted, Task, batch_size


@dataclasses.dataclass(frozen=True)
class Method:
    """A way of training a calibrated classifier: a value, whose fields are all its settings."""

    varying: ClassVar[frozenset[str]] = frozenset()
    """Numeric fields in which the members of one population may differ."""

    def rows_at_once(self, task: Task) -> int:
        """Rows whose activations one fit keeps at the same time: what its memory goes by."""
        return batch_size(len(task.train), getattr(self, "batch_size", None)) or len(task.train)

    @classmethod
    def fit_group(
        cls, methods: Sequence[Any], tasks: Sequence[Task], callbacks: Sequence[Callback] = ()
    ) -> list[Fitted]:
        """Train methods that differ in ``varying`` fields only, each on its task, as one population.

        A network that breaks down is a ``failure`` among several, and a NonFiniteError where it is alone: ask ``fit``,
        which always raises, or ``fit_all``, which never does.
        """
        raise NotImplementedError

    def structure(self) -> tuple[Any, ...]:
        """All that must be equal between members of one population."""
        fields = [f.name for f in dataclasses.fields(self) if f.name not in self.varying]
        return type(self), *(getattr(self, name) for name in fields)

    def fit(self, task: Task, *, callbacks: Sequence[Callback] = ()) -> Fitted:
        """Train on one task. Training that breaks down raises a :class:`calibrant.bilevel.NonFiniteError`."""
        (fitted,) = self.fit_group([self], [task], callbacks)
        if fitted.failure:
            raise NonFiniteError(fitted.failure)
        return fitted


Job = tuple[Method, Task]
ROWS_AT_ONCE = {"cpu": 262_144, "cuda": 2_097_152}
"""Rows, over all networks and steps of a window, whose activations one population keeps: 10 KB each at 64 units."""


def fit_all(
    jobs: Sequence[Job],
    *,
    device: torch.device | str | None = None,
    callbacks: Callable[[str], Sequence[Callback]] | None = None,
    on_group: Callable[[list[int]], Any] | None = None,
) -> list[Fitted]:
    """Train every job, in the order given; jobs of one structure and shape run as one population (or
    a few, where one would need too much memory).

    A job that breaks down does not end the others: its result says why (``failure``), however many ran beside it.

    Parameters
    ----------
    jobs : sequence of (Method, Task)
        Seeds, data sets and settings alike: a grid search is a longer list.
    device : optional
        Where to train.
    callbacks : callable ``description -> callbacks``, optional
        Makes the callbacks of each population (a progress bar, say).
    on_group : callable ``positions -> context manager``, optional
        Entered around each population's training: a place for stop-watches.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, (method, task) in enumerate(jobs):
        groups.setdefault((method.structure(), task.shape), []).append(position)
    results: dict[int, Fitted] = {}
    for positions in _bounded(groups.values(), jobs, device):
        methods = [jobs[p][0] for p in positions]
        moved: dict[int, Task] = {}  # jobs that share a task share its tensors too
        for task in (jobs[p][1] for p in positions):
            if id(task) not in moved:
                moved[id(task)] = task.to(device)
        tasks = [moved[id(jobs[p][1])] for p in positions]
        made = callbacks(f"{type(methods[0]).__name__} × {len(positions)}") if callbacks else ()
        if on_group is None:
            fitted = _fit_group(methods, tasks, made)
        else:
            with on_group(positions):
                fitted = _fit_group(methods, tasks, made)
        results.update(zip(positions, fitted, strict=True))
    return [results[p] for p in range(len(jobs))]


def _fit_group(methods: Sequence[Method], tasks: Sequence[Task], callbacks: Sequence[Callback]) -> list[Fitted]:
    """``fit_group``, where a network that is alone fails as one among several does: as a value."""
    try:
        return methods[0].fit_group(methods, tasks, callbacks)
    except NonFiniteError as error:
        return [Failed(str(error), task.classes) for task in tasks]


def _bounded(
    groups: Iterable[list[int]], jobs: Sequence[Job], device: torch.device | str | None
) -> Iterator[list[int]]:
    """Groups in pieces that fit into memory."""
    kind = "cpu" if device is None else torch.device(device).type
    limit = ROWS_AT_ONCE.get(kind, ROWS_AT_ONCE["cpu"])
    for group in groups:
        method, task = jobs[group[0]]
        size = max(1, limit // method.rows_at_once(task))
        yield from (group[k : k + size] for k in range(0, len(group), size))


def stacked(values: Sequence[float]) -> float | Tensor:
    """One number where all agree, else a vector with one entry a member."""
    return values[0] if len(set(values)) == 1 else torch.tensor(values)

"""Processes for experiments: sets of one shape side by side on a GPU, and scikit-learn's methods on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

from calibrant.experiments.records import prepare

Outcome = TypeVar("Outcome")


def in_parts(
    run: Callable[..., Outcome], sets: Sequence[str], *, device: torch.device, **arguments: Any
) -> list[Outcome]:
    """Call ``run(sets=, device=, **arguments)`` for each part of the sets; what it returned, part by part.

    On a GPU a part is the sets of one shape, which no population mixes with others, and each part has a process, the
    last one this: beginning a population is Python's work, during which the GPU would wait. Elsewhere there is one
    part. ``run`` must be a function of a module.
    """
    if not sets:
        raise ValueError("there must be at least one set.")
    *others, own = by_shape(sets) if device.type == "cuda" else [tuple(sets)]
    with process_pool(len(others)) as pool:
        waiting = [pool.submit(run, sets=group, device=device, **arguments) for group in others]
        here = run(sets=own, device=device, **arguments)
        return [*(part.result() for part in waiting), here]


def by_shape(sets: Sequence[str]) -> list[tuple[str, ...]]:
    """Sets whose networks may train as one population, together."""
    groups: dict[Any, list[str]] = {}
    for name in sets:
        groups.setdefault(prepare(name, 0).task.shape, []).append(name)
    return [tuple(group) for group in groups.values()]


@contextmanager
def process_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """So many processes beside this one, each with one thread; none are started before there is work for them."""
    # Not forked: a process that has used a GPU cannot be.
    context = get_context("spawn")
    with ProcessPoolExecutor(max(1, processes), mp_context=context, initializer=_one_thread) as pool:
        yield pool


def _one_thread() -> None:
    """Each process has one core: threads of linear algebra would fight for them."""
    threadpool_limits(1)
    torch.set_num_threads(1)
